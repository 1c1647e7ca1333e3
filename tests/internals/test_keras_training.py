"""What a callback can find out about the `fit` that runs it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mgpu.internals import keras_training

X, Y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")


def compiled(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


class Asks(keras.callbacks.Callback):
    """Asks when training begins, and in each batch."""

    def on_train_begin(self, logs=None):
        self.call = keras_training.training_call()
        self.length = keras_training.EpochLength(self.model, self.call.epoch_iterator)
        self.batch_size = keras_training.batch_size_of(self.call.epoch_iterator)
        self.last, self.samples = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.last.append(self.length.is_last(batch))
        self.samples.append(sum(keras_training.num_samples_counted(self.model)))


def fit(*args, model=None, **options):
    asks = Asks()
    (model or compiled()).fit(*args, shuffle=False, verbose=0, callbacks=[asks], **options)
    return asks


def test_a_callback_finds_its_neighbours_and_the_data():
    asks = fit(X, Y, batch_size=4)
    assert asks in asks.call.callbacks
    assert asks.call.names["x"] is X
    assert asks.batch_size == 4


def test_a_loop_that_drives_callbacks_has_no_epochs_of_keras():
    asks = keras.callbacks.Callback()
    asks.on_epoch_begin = lambda epoch, logs=None: setattr(
        asks, "call", keras_training.training_call()
    )
    keras.callbacks.CallbackList([asks], model=compiled()).on_epoch_begin(0)
    assert asks.call.epoch_iterator is None
    assert asks.call.code.co_name == "test_a_loop_that_drives_callbacks_has_no_epochs_of_keras"


def test_nobody_runs_a_callback():
    assert keras_training.training_call() == keras_training.TrainingCall()


def test_an_epoch_of_known_length():
    asks = fit(X, Y, batch_size=4)
    assert asks.last == [False, False, True]
    assert asks.samples == [4, 8, 10]
    assert not asks.length.is_stream


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_end_of_an_epoch_of_unknown_length_is_not_foreseen():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).filter(lambda x, y: True)
    asks = fit(data, epochs=2)
    assert asks.last == [False] * 6


def test_an_epoch_that_is_a_piece_of_a_stream():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(4)
    asks = fit(data, steps_per_epoch=2)
    assert asks.length.is_stream
    assert asks.last == [False, True]


def test_an_epoch_of_which_some_batches_are_trained_is_shorter_and_the_next_is_not():
    class Skips(Asks):
        """As if two of three batches had been trained before the run was interrupted."""

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                self.length.shorten(2, {"loss": 0.5})

        def on_epoch_end(self, epoch, logs=None):
            self.length.restore()

    skips = Skips()
    compiled().fit(X, Y, batch_size=4, shuffle=False, epochs=2, verbose=0, callbacks=[skips])
    assert skips.last == [True, False, False, True]
    assert skips.length.num_batches == 3


def test_nothing_is_known_of_a_custom_loop():
    length = keras_training.EpochLength()
    assert not length.is_of_fit
    assert length.num_batches is None
    assert not length.is_last(100)


def test_a_callback_that_is_twice_in_the_list():
    one, other = keras.callbacks.Callback(), keras.callbacks.Callback()
    keras_training.refuse_twice(one, [one, other])
    with pytest.raises(ValueError, match="The same Callback is twice"):
        keras_training.refuse_twice(one, [one, other, one])


@pytest.mark.parametrize(("asked", "last"), [(0, 0), (3, 3), ((2, 5), 5)])
def test_a_users_own_profiler_comes_first(tmp_path, asked, last):
    board = keras.callbacks.TensorBoard(tmp_path, profile_batch=asked)
    assert keras_training.profiled_until([keras.callbacks.Callback(), board]) == last


def test_the_strategy_of_a_model(devices):
    strategy = tf.distribute.OneDeviceStrategy(devices[1])
    with strategy.scope():
        model = compiled()
    assert keras_training.strategy_of(model) is strategy
    assert not keras_training.is_default_strategy(strategy)
    assert keras_training.is_default_strategy(tf.distribute.get_strategy())
    assert keras_training.strategy_of(compiled()) is None
