"""Which batch comes next, whatever `fit` has read ahead."""

import numpy as np

import keras_mgpu as km
from keras_mgpu.checkpoints.data_position import NOT_RESUMABLE, OTHER_BATCHES, DataPosition
from keras_mgpu.checkpoints.resumable_dataset import Position


def resumable(num_samples=8):
    return km.resumable(np.arange(num_samples), batch_size=2, seed=1)


def place(position):
    return position.number, position.batch


def test_batches_of_a_pass_are_counted():
    data = resumable()
    position = DataPosition(data)
    for number in range(2):
        list(data)
        for batch in range(1, 5):
            position.advance(1)
            assert place(position.next(batch)) == (number, batch)
        assert place(position.next(0)) == (number + 1, 0)  # The epoch has ended.


def test_epochs_that_are_pieces_of_one_pass():
    data = resumable()
    list(data)
    position = DataPosition(data, is_stream=True)
    position.advance(3)
    assert place(position.next(0)) == (0, 3)
    assert not position.is_past_the_last(100)


def test_the_end_of_an_epoch():
    position = DataPosition(resumable())
    assert [position.is_past_the_last(batch) for batch in (3, 4)] == [False, True]


def test_seeking():
    data = resumable()
    position = DataPosition(data)
    assert position.seek(Position(2, 1, 1, num_batches=4)) is None
    assert place(data.next) == (2, 1)
    assert position.seek(Position(2, 1, 1, num_batches=9)) == OTHER_BATCHES
    assert position.seek(None) == NOT_RESUMABLE


def test_data_without_positions():
    position = DataPosition(np.arange(8))
    position.advance(1)
    assert position.next(1) is None
    assert not position.is_past_the_last(1)
    assert position.seek(Position()) == NOT_RESUMABLE
