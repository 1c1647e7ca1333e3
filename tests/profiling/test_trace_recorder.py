import tensorflow as tf

from keras_mgpu.profiling.trace_recorder import TraceRecorder


def test_what_runs_meanwhile_is_recorded():
    recorder = TraceRecorder()
    assert recorder.is_running
    tf.add(1, 2)
    assert recorder.stop() > 0
    assert len(recorder.read().planes) > 0


def test_while_another_profiler_runs():
    first, second = TraceRecorder(), TraceRecorder()
    assert not second.is_running
    second.stop()
    assert second.read() is None
    assert first.is_running
    first.discard()


def test_after_one_that_was_discarded():
    TraceRecorder().discard()
    recorder = TraceRecorder()
    assert recorder.is_running
    recorder.discard()
