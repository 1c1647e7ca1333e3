"""Steps that the callback profiles, and what it logs about them."""

import time

import keras
import pytest
import tensorflow as tf
from event_scalars import scalars, steps, values
from profiled_split import data, make_split
from small_fit import fit, ones, small_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km


def test_one_step_per_epoch_of_a_pipeline(devices, tmp_path):
    callback = km.GPUMetrics(tmp_path, interval=0.05)
    make_split(devices).fit(*data(), batch_size=64, epochs=3, verbose=0, callbacks=[callback])
    events = EventAccumulator(str(tmp_path / "pipeline"), size_guidance={"images": 0}).Reload()
    assert [event.step for event in events.Scalars("pipeline/bubble")] == [2, 5, 9]
    for tag in ("pipeline/bubble_predicted", "pipeline/critical_stage", "pipeline/step_seconds"):
        assert len(events.Scalars(tag)) == 3
    assert events.Scalars("pipeline/transfer_0_to_1_ms")[0].value >= 0
    images = events.Images("pipeline/timeline")
    assert len(images) == 3
    assert images[0].encoded_image_string.startswith(b"\x89PNG")
    for run in ("cpu_0", "cpu_1"):
        assert all(0 < value <= 1 for value in values(tmp_path, run, "pipeline/busy"))


def test_one_step_in_several(devices, tmp_path):
    callback = km.GPUMetrics(tmp_path, interval=0.05, timeline_every=3)
    make_split(devices).fit(*data(), batch_size=32, verbose=0, callbacks=[callback])
    assert steps(tmp_path, "pipeline", "pipeline/bubble") == [2, 5, 8]


def test_a_later_step_instead_of_one_with_missing_ops(devices, tmp_path, missing_ops):
    missing_ops.num_traces = 1
    callback = km.GPUMetrics(tmp_path, interval=0.01)
    make_split(devices).fit(*data(), batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    first, second = steps(tmp_path, "pipeline", "pipeline/bubble")
    assert 2 < first <= 32 < second


def test_waiting_for_data_is_seen(tmp_path):
    """Each batch takes longer to read than it takes to train all of them but the first."""

    def batches():
        for _ in range(40):
            time.sleep(0.05)
            yield ones(4)

    callback = km.GPUMetrics(tmp_path, interval=0.02, timeline_every=30)
    options = {"steps_per_epoch": 40, "shuffle": False, "verbose": 0}
    small_model().fit(batches(), callbacks=[callback], **options)
    # By now nothing is left of what was read ahead while the first step was built.
    assert values(tmp_path, "host", "profile/input")[-1] > 0.5


def test_a_step_that_fails_while_it_is_profiled(tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                raise ValueError("enough")

    callback = km.GPUMetrics(tmp_path, interval=0.02)
    with pytest.raises(ValueError, match="enough"):
        fit(callback, Fails())
    callback._monitor._thread.join(60)
    tf.profiler.experimental.start(str(tmp_path / "mine"))
    tf.profiler.experimental.stop()


def test_a_users_own_profile_comes_first(tmp_path):
    board = keras.callbacks.TensorBoard(tmp_path / "board", profile_batch=(2, 4))
    fit(km.GPUMetrics(tmp_path / "ours", interval=0.02), board)
    assert list((tmp_path / "board").rglob("*.xplane.pb"))
    (event,) = scalars(tmp_path / "ours", "host")["profile/input"]
    assert event.step > 4
