"""Data that can begin at any batch."""

import numpy as np
import pytest
import runs
import tensorflow as tf

import keras_mgpu as km
from keras_mgpu.checkpoints.resumable import resumable
from keras_mgpu.checkpoints.resumable_dataset import Position, ResumableDataset


def test_the_order_depends_only_on_seed_and_pass():
    x = np.arange(20)

    def batches(data):
        return [batch.numpy().tolist() for batch in data]

    def samples(batches):
        return [sample for batch in batches for sample in batch]

    data = km.resumable(x, batch_size=6, seed=1)
    first, second = batches(data), batches(data)
    assert sorted(samples(first)) == list(range(20))
    assert first != second
    again = km.resumable(x, batch_size=6, seed=1)
    assert batches(again) == first
    assert batches(km.resumable(x, batch_size=6, seed=2)) != first
    in_order = km.resumable(x, batch_size=6, shuffle=False)
    assert samples(batches(in_order)) == list(range(20))


def test_structures_and_types_are_kept():
    x = {"a": np.zeros((5, 2), "float64"), "b": np.array([b"u", b"v", b"w", b"x", b"y"])}
    data = km.resumable(x, np.arange(5), batch_size=2, shuffle=False)
    (first, y), *_, (last, _) = list(data)
    assert first["a"].dtype == tf.float32  # As `fit` takes arrays.
    assert first["b"].numpy().tolist() == [b"u", b"v"]
    assert y.numpy().tolist() == [0, 1]
    assert last["a"].shape == (1, 2)
    assert int(data.cardinality()) == 3


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(3), np.zeros(4)), {}, r"same number of samples. Received: \[3, 4\]"),
        ((np.zeros(3),), {"batch_size": 0}, "`batch_size` must be"),
        (
            (tf.data.Dataset.range(3),),
            {"batch_size": 2},
            "`batch_size` can only be given with arrays",
        ),
        ((runs.PyData(), np.zeros(3)), {}, "`y` can only be given with arrays, not with a PyData"),
    ],
)
def test_bad_data(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        km.resumable(*arguments, **options)


def batches_of(data):
    return [np.asarray(batch).tolist() for batch in data]


def test_a_position_in_arrays():
    data = resumable(np.arange(10), batch_size=4, seed=1)
    passes = [batches_of(data) for _ in range(3)]
    again = resumable(np.arange(10), batch_size=4, seed=7)
    assert again.next == Position(number=0, batch=0, seed=7, num_batches=3)
    assert again.seek(Position(number=1, batch=2, seed=1, num_batches=3))
    assert batches_of(again) == passes[1][2:]
    assert again.running.number == 1
    assert batches_of(again) == passes[2]


def test_a_position_in_a_dataset():
    def make():
        return resumable(tf.data.Dataset.range(6).shuffle(6, seed=3).batch(2))

    data = make()
    passes = [batches_of(data) for _ in range(2)]
    again = make()
    again.seek(Position(number=1, batch=1, num_batches=3))
    assert batches_of(again) == passes[1][1:]


def test_a_position_in_data_of_another_length():
    data = resumable(np.arange(10), batch_size=4, seed=1)
    assert not data.seek(Position(number=1, batch=2, seed=1, num_batches=5))
    assert data.next.number == 0


def test_a_dataset_that_was_used_before(caplog):
    data = resumable(tf.data.Dataset.range(4).batch(2))
    list(data)
    data.seek(Position(number=0, batch=1, num_batches=2))
    assert batches_of(data) == [[2, 3]]
    assert "was already iterated over 1 times" in caplog.text


def test_passes_are_prepared_in_order():
    prepared = []
    data = ResumableDataset(
        lambda number, batch, seed: tf.data.Dataset.from_tensors(number), 1, prepared.append
    )
    assert [batches_of(data) for _ in range(2)] == [[0], [1]]
    assert prepared == [0, 1]
