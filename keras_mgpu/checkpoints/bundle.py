"""TensorFlow's tensor bundle, the file format of the tensors.

TensorFlow writes it without holding Python's lock, and with a checksum for each tensor.
`tf.train.load_checkpoint` reads it without this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_mgpu.checkpoints.manifest import TensorEntry
from keras_mgpu.system.memory import num_bytes_of

READERS = 4
SHARD_BYTES = 128 << 20
TensorsByKey = Mapping[str, tf.Tensor]


def shards(tensors: TensorsByKey) -> Iterator[dict[str, tf.Tensor]]:
    """Divides tensors into groups, so that one can be written while another is checked."""
    group: dict[str, tf.Tensor] = {}
    num_bytes = 0
    for key, tensor in tensors.items():
        if group and num_bytes + num_bytes_of(tensor) > SHARD_BYTES:
            yield group
            group, num_bytes = {}, 0
        group[key] = tensor
        num_bytes += num_bytes_of(tensor)
    if group:
        yield group


def write(prefix: str, tensors: TensorsByKey) -> None:
    """Writes `prefix.index` and `prefix.data-00000-of-00001`."""
    with tf.device("/CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )


def data_file(prefix: str, index: int = 0, count: int = 1) -> str:
    """The name of the file that holds the bytes of shard `index`."""
    return f"{prefix}.data-{index:05d}-of-{count:05d}"


def index_file(prefix: str) -> str:
    return f"{prefix}.index"


def merge(prefixes: Sequence[str], destination: str) -> None:
    """Merges bundles into one. Data files are renamed in the given order, not copied."""
    with tf.device("/CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=list(prefixes),
            destination_prefix=destination,
            delete_old_dirs=False,
        )


def read(
    prefix: str,
    entries: Sequence[TensorEntry],
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> dict[str, tf.Tensor]:
    """Reads tensors to host memory, several at a time, and checks their checksums.

    `progress` is called with the size of each tensor that was read.

    Raises:
        tf.errors.OpError: If a tensor is damaged or cannot be read.
    """
    groups: list[list[TensorEntry]] = [[] for _ in range(READERS)]
    loads = [0] * READERS
    for entry in sorted(entries, key=num_bytes_of, reverse=True):
        lightest = loads.index(min(loads))
        groups[lightest].append(entry)
        loads[lightest] += num_bytes_of(entry)
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda group: _read_group(prefix, group, progress), groups))
    return {key: tensor for group in found for key, tensor in group.items()}


def _read_group(
    prefix: str, entries: Sequence[TensorEntry], progress: Callable[[int], None]
) -> dict[str, tf.Tensor]:
    found = {}
    for entry in entries:
        with tf.device("/CPU:0"):
            (found[entry.key],) = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[entry.key],
                shape_and_slices=[""],
                dtypes=[tf.as_dtype(entry.dtype)],
            )
        progress(num_bytes_of(entry))
    return found


def unreadable(prefix: str, entries: Sequence[TensorEntry]) -> list[str]:
    """Keys of the tensors that are damaged."""
    found = []
    for entry in entries:
        try:
            read(prefix, [entry])
        except tf.errors.OpError:
            found.append(entry.key)
    return found


def entries_of(tensors: TensorsByKey) -> Iterator[TensorEntry]:
    for key, tensor in tensors.items():
        yield TensorEntry(key, tuple(tensor.shape.as_list()), tensor.dtype.name)
