"""Tensors in files."""

import pytest
import tensorflow as tf

from keras_mgpu.checkpoints import bundle
from keras_mgpu.checkpoints.manifest import TensorEntry

TENSORS = {"a": tf.range(6.0), "b": tf.constant([[1, 2]], tf.int64)}
ENTRIES = list(bundle.entries_of(TENSORS))


def test_entries_and_sizes():
    assert [TensorEntry("a", (6,), "float32"), TensorEntry("b", (1, 2), "int64")] == ENTRIES
    assert [bundle.num_bytes_of(each) for each in ENTRIES] == [24, 16]
    assert [bundle.num_bytes_of(each) for each in TENSORS.values()] == [24, 16]


def test_written_merged_and_read(tmp_path):
    prefixes = [str(tmp_path / name) for name in ("one", "other")]
    for prefix, key in zip(prefixes, TENSORS):
        bundle.write(prefix, {key: TENSORS[key]})
    bundle.merge(prefixes, str(tmp_path / "both"))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        bundle.data_file("both", 0, 2),
        bundle.data_file("both", 1, 2),
        bundle.index_file("both"),
    ]
    sizes = []
    found = bundle.read(str(tmp_path / "both"), ENTRIES, sizes.append)
    assert sorted(sizes) == [16, 24]
    for key, tensor in TENSORS.items():
        assert found[key].numpy().tolist() == tensor.numpy().tolist()


def test_a_damaged_tensor_is_found(tmp_path):
    prefix = str(tmp_path / "x")
    bundle.write(prefix, TENSORS)
    path = tmp_path / bundle.data_file("x")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    assert bundle.unreadable(prefix, ENTRIES) == ["a"]


@pytest.mark.parametrize(("limit", "groups"), [(16, [["a"], ["b"]]), (1000, [["a", "b"]])])
def test_large_tensors_get_their_own_shard(monkeypatch, limit, groups):
    monkeypatch.setattr(bundle, "SHARD_BYTES", limit)
    assert [list(group) for group in bundle.shards(TENSORS)] == groups
