"""Counting without Keras: what the hooks of a run amount to."""

from keras_mgpu.callbacks.run_progress import RunProgress


def state(progress):
    return progress.step, progress.epoch, progress.batch


def train(progress, numbers, num_batches=None):
    """Calls that Keras gives these numbers of a first and a last batch."""
    counts = []
    for first, last in numbers:
        progress.begin_call(first)
        counts.append(progress.end_call(last, num_batches))
    return counts


def test_batches_are_counted_in_their_epoch_and_over_all_epochs():
    progress = RunProgress()
    for epoch in range(2):
        progress.begin_epoch(epoch)
        assert train(progress, [(0, 0), (1, 1), (2, 2)], num_batches=3) == [1, 1, 1]
        assert state(progress) == (3 * epoch + 3, epoch, 3)
        progress.end_epoch(epoch)
    assert state(progress) == (6, 2, 0)


def test_several_batches_in_one_call():
    progress = RunProgress()
    assert train(progress, [(0, 2), (3, 5)]) == [3, 3]
    assert state(progress) == (6, 0, 6)


def test_a_last_call_with_fewer_batches_than_keras_numbers():
    """Seven batches, three per call: Keras numbers the last call 6 to 8."""
    progress = RunProgress()
    assert train(progress, [(0, 2), (3, 5), (6, 8)], num_batches=7) == [3, 3, 1]
    assert progress.step == 7


def test_a_batch_that_begins_after_the_last_one_does_not_count():
    """Keras begins one to find out that data of unknown length has ended."""
    progress = RunProgress()
    progress.begin_epoch(0)
    train(progress, [(0, 0), (1, 1)])
    progress.begin_call(2)
    assert progress.is_in_call
    progress.end_epoch(0)
    progress.begin_epoch(1)
    assert not progress.is_in_call
    assert state(progress) == (2, 1, 0)


def test_a_loop_that_reports_only_the_ends_of_batches():
    progress = RunProgress()
    for number in range(5):
        assert not progress.is_in_call
        assert progress.end_call(number) == 1
    assert state(progress) == (5, 0, 5)


def test_a_run_that_is_resumed_inside_an_epoch():
    """Keras numbers the rest of the epoch from 0, and knows that it is shorter."""
    progress = RunProgress(step=10, epoch=2, batch=2)
    progress.begin_epoch(2, batch=2)
    assert train(progress, [(0, 1), (2, 3)], num_batches=3) == [2, 1]
    assert state(progress) == (13, 2, 5)


def test_a_step_never_goes_back():
    """An optimizer may have counted more steps than this callback has seen, or fewer."""
    progress = RunProgress()
    progress.skip_to(16)
    assert progress.step == 16
    progress.skip_to(3)
    assert progress.step == 16
