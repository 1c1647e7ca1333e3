import sys
import threading

from keras_mgpu.internals.keras_training import TrainingCall
from keras_mgpu.monitoring.training_watch import runs_in, watch


def test_training_that_still_runs_is_never_taken_for_ended():
    """Not even while its thread enters and leaves generators, as Keras's epochs do."""
    is_over = threading.Event()

    def read(depth):
        return read(depth - 1) if depth else None

    def batches():
        while not is_over.is_set():
            yield read(depth=20)

    calls, has_begun = [], threading.Event()

    def fit():
        calls.append(sys._getframe())
        has_begun.set()
        for _ in batches():
            pass

    training = threading.Thread(target=fit)
    training.start()
    has_begun.wait()
    checks = [runs_in(training.ident, calls[0]) for _ in range(5000)]
    is_over.set()
    training.join()
    assert all(checks)
    assert not runs_in(training.ident, calls[0])


def test_a_custom_loop_is_not_watched():
    assert watch(TrainingCall(frame=sys._getframe()))()
    assert watch(TrainingCall())()
