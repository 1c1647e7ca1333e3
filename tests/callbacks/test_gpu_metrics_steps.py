"""Which steps are logged, and how many samples they had."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from event_scalars import scalars, steps, values
from small_fit import Sleeps, Takes, fit, ones, small_model

import keras_mgpu as km


def assert_steps(folder, last):
    """Every tag has each of its steps once, in order, up to the last one."""
    for tag, events in scalars(folder, "host").items():
        found = [event.step for event in events]
        assert found == sorted(set(found)), tag
        if not tag.startswith(("host/disk", "host/network", "profile/")):
            assert found[-1] == last, tag


def callback_list(callback, model):
    return keras.callbacks.CallbackList([callback], model=model)


def test_a_second_run_continues_where_the_first_ended(tmp_path):
    """At the step of a restored optimizer, whichever callback is the first in the list."""
    for name, epochs in (("first", 1), ("second", 3)):
        metrics = km.GPUMetrics(tmp_path / name, interval=0.02)
        fit(metrics, km.DistributedCheckpoint(tmp_path / "checkpoints"), epochs=epochs)
    found = steps(tmp_path / "second", "host", "train/step_time")
    assert found[0] > 16
    assert found[-1] == 48


def test_several_steps_in_one_execution(tmp_path, fake_clock):
    callbacks = [km.GPUMetrics(tmp_path), Takes(fake_clock, 8.0)]
    fit(*callbacks, model=small_model(steps_per_execution=8), epochs=2)
    assert steps(tmp_path, "host", "train/step_time") == [8, 16, 24, 32]
    assert values(tmp_path, "host", "train/step_time") == [1000.0] * 4


def test_several_steps_in_one_execution_that_do_not_divide_an_epoch(tmp_path, fake_clock):
    """The last of 16 batches is trained alone."""
    callbacks = [km.GPUMetrics(tmp_path), Takes(fake_clock, 3.0)]
    fit(*callbacks, model=small_model(steps_per_execution=3), epochs=2)
    expected = [3, 6, 9, 12, 15, 16, 19, 22, 25, 28, 31, 32]
    assert steps(tmp_path, "host", "train/step_time") == expected


@pytest.mark.parametrize(
    ("update_freq", "expected"),
    [("epoch", [16, 32]), (5, [5, 10, 15, 16, 20, 25, 30, 32]), ("batch", list(range(1, 33)))],
)
def test_steps_that_are_written(tmp_path, fake_clock, update_freq, expected):
    fit(km.GPUMetrics(tmp_path, update_freq=update_freq), Takes(fake_clock, 1.0), epochs=2)
    assert steps(tmp_path, "host", "train/step_time") == expected


def test_at_most_one_step_per_interval_is_written(tmp_path, fake_clock):
    fit(km.GPUMetrics(tmp_path, interval=2.0), Takes(fake_clock, 0.5))
    assert steps(tmp_path, "host", "train/step_time") == [4, 8, 12, 16]


def test_a_long_last_validation_is_not_lost(tmp_path, fake_clock):
    """What is sampled in it has no other step to go to than the last."""

    class TakesMemory(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            held = np.ones(1 << 27, "uint8") if epoch == 1 else None
            fake_clock.advance(5.0)
            del held

    callbacks = [km.GPUMetrics(tmp_path), TakesMemory(), Takes(fake_clock, 2.0)]
    fit(*callbacks, num_samples=8, epochs=2, validation_data=ones(8))
    assert_steps(tmp_path, 4)
    before, last = values(tmp_path, "host", "host/memory_max")[-2:]
    assert last > before + 100


def test_samples_are_counted_with_validation_and_a_smaller_last_batch(tmp_path):
    callback = km.GPUMetrics(tmp_path)
    fit(callback, num_samples=10, epochs=3, validation_data=ones(10))
    assert callback._samples.total == 30


def test_batches_of_changing_size_are_counted(tmp_path, fake_clock):
    callback, sizes = km.GPUMetrics(tmp_path), [4] * 5 + [40] * 5
    data = (ones(size) for size in sizes)
    callbacks = [callback, Takes(fake_clock, 1.0)]
    options = {"steps_per_epoch": len(sizes), "shuffle": False, "verbose": 0}
    small_model().fit(data, callbacks=callbacks, **options)
    assert callback._samples.total == sum(sizes)
    assert values(tmp_path, "host", "train/samples_per_second") == pytest.approx(sizes)


def test_callbacks_that_evaluate(tmp_path):
    """Keras counts the samples of an evaluation where it counts those of training."""

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(*ones(640), verbose=0)

    callback = km.GPUMetrics(tmp_path, interval=10.0)
    fit(Evaluates(), callback, num_samples=10, epochs=3)
    assert callback._samples.total == 30


def test_a_loop_for_which_keras_counts_nothing(tmp_path, fake_clock):
    model = fit(num_samples=8)
    callbacks = callback_list(km.GPUMetrics(tmp_path), model)
    callbacks.on_train_begin()
    for batch in range(20):
        callbacks.on_train_batch_begin(batch)
        fake_clock.advance(1.0)
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    found = scalars(tmp_path, "host")
    assert found["train/step_time"][-1].step == 22  # Two were trained before.
    assert "train/samples_per_second" not in found


def test_a_loop_that_reports_only_ends(tmp_path):
    callbacks = callback_list(km.GPUMetrics(tmp_path, interval=0.02), small_model())
    callbacks.on_train_begin()
    for batch in range(8):
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    assert steps(tmp_path, "host", "host/memory")[-1] == 8


def test_a_loop_with_train_on_batch(tmp_path):
    """It lets Keras reset its count at every batch."""
    model, callback = small_model(), km.GPUMetrics(tmp_path, interval=0.02)
    callbacks = callback_list(callback, model)
    callbacks.on_train_begin()
    epoch_iterator = iter([4, 4, 4, 3, 3])  # A name that `fit` uses, too.
    for number, size in enumerate(epoch_iterator):
        callbacks.on_train_batch_begin(number)
        model.train_on_batch(*ones(size))
        callbacks.on_train_batch_end(number)
    callbacks.on_train_end()
    assert callback._samples.total == 18
    assert_steps(tmp_path, 5)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", ["generator", "filtered"])
def test_data_of_unknown_length_has_no_further_step(tmp_path, fake_clock, kind):
    """Keras begins a batch before it knows whether there is one."""
    data = tf.data.Dataset.from_tensor_slices(ones(12)).batch(4)
    data = data.filter(lambda x, y: True) if kind == "filtered" else (ones(4) for _ in range(3))
    callbacks = [km.GPUMetrics(tmp_path, timeline_every=1), Takes(fake_clock, 1.0)]
    num_epochs = 3 if kind == "filtered" else 1
    options = {"validation_data": ones(8), "epochs": num_epochs, "shuffle": False, "verbose": 0}
    small_model().fit(data, callbacks=callbacks, **options)
    assert_steps(tmp_path, 3 * num_epochs)
    tf.profiler.experimental.start(str(tmp_path / "mine"))  # None was left running.
    tf.profiler.experimental.stop()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_fit_that_is_interrupted_and_tried_again(tmp_path, is_same):
    model, callback = small_model(), km.GPUMetrics(tmp_path, interval=0.02)
    with pytest.raises(KeyboardInterrupt):
        fit(callback, Sleeps(fails_at=5), num_samples=32, model=model)
    first = callback._monitor
    callback = callback if is_same else km.GPUMetrics(tmp_path, interval=0.02)
    fit(callback, Sleeps(), num_samples=32, model=model)
    assert not first.is_running
    assert_steps(tmp_path, 4 + 8)


def test_accumulated_gradients(tmp_path, fake_clock):
    """A step is a batch, whether or not weights are updated."""
    model = small_model(keras.optimizers.SGD(gradient_accumulation_steps=3))
    for _ in range(3):
        fit(km.GPUMetrics(tmp_path), Takes(fake_clock, 1.0), num_samples=20, model=model)
    assert_steps(tmp_path, 15)
