import keras
from small_fit import fit, ones, small_model

from keras_mgpu.monitoring.sample_count import SampleCount


def test_it_adds_what_keras_has_counted_since():
    model, count = small_model(), SampleCount()
    model.fit(*ones(8), verbose=0)
    count.begin(model)
    at_batches = []

    def update(batch, logs):
        count.update(model)
        at_batches.append(count.total)

    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: count.begin(model), on_train_batch_end=update
    )
    fit(watch, num_samples=10, model=model, epochs=2)
    assert at_batches == [4, 8, 10, 14, 18, 20]


def test_a_count_that_keras_resets_at_every_batch():
    model, count = small_model(), SampleCount()
    model.train_on_batch(*ones(4))
    count.begin(model)
    for size in (4, 4, 3):
        model.train_on_batch(*ones(size))
        count.update(model)
    assert count.total == 11


def test_other_samples_do_not_count_while_it_is_paused():
    model, count = small_model(), SampleCount()
    count.begin(model)
    model.train_on_batch(*ones(4))
    count.update(model)
    count.pause()
    model.evaluate(*ones(64), verbose=0)
    count.update(model)
    assert count.total == 4
