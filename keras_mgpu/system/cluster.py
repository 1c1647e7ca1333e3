"""The workers that train a model together, and which of them this process is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from keras_mgpu.internals import tf_devices

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """The processes that each hold a copy of the variables and write checkpoints together.

    Args:
        index: Integer, the index of this process. Worker 0 combines the parts of a checkpoint.
        names: Tuple of all names, such as `("worker:0", "worker:1")`.
    """

    index: int = 0
    names: tuple[str, ...] = ("worker:0",)

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, sizes: Sequence[tuple[T, int]]) -> list[T]:
        """Returns the share of this worker, balanced by size.

        Every worker computes the same distribution, so that each item has exactly one owner.

        Args:
            sizes: Pairs of an item and its size.
        """
        loads = [0] * self.count
        mine = []
        for item, size in sorted(sizes, key=lambda pair: pair[1], reverse=True):
            lightest = loads.index(min(loads))
            loads[lightest] += size
            if lightest == self.index:
                mine.append(item)
        return mine


def is_unreachable(name: str) -> bool:
    """Whether a worker's process does not answer, as far as TensorFlow knows."""
    job, _, index = name.partition(":")
    return tf_devices.is_unreachable(f"/job:{job}/replica:0/task:{index}")


def check_tf_config() -> None:
    """Validates the environment variable TF_CONFIG, if it is set.

    Raises:
        ValueError: If TF_CONFIG is invalid.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return
    try:
        problem = _problem(json.loads(text))
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error}"
    except KeyError as error:
        problem = f"has no {error}"
    except (ValueError, TypeError, AttributeError):
        problem = "has the wrong structure"
    if problem:
        raise ValueError(f"TF_CONFIG {problem}. {_EXAMPLE} Received: TF_CONFIG={text}")


def _problem(config: Any) -> str:
    """Returns what is wrong with a configuration, or an empty string."""
    cluster, task = config["cluster"], config["task"]
    job, index = task["type"], task["index"]
    if isinstance(index, bool) or not float(index).is_integer():
        return f"has a task index that is not an integer: {index}"
    index = int(index)
    if job not in cluster:
        return f"describes this process as a {job!r}, but the cluster has none"
    addresses = [address for each in cluster.values() for address in each]
    if any(not isinstance(each, list) for each in cluster.values()):
        return "must contain a list of addresses for each job"
    invalid = [each for each in addresses if not _is_address(str(each))]
    if invalid:
        return f"has addresses that are not of the form host:port: {invalid}"
    if len(set(addresses)) < len(addresses):
        return "contains the same address twice"
    if not 0 <= index < len(cluster[job]):
        count = len(cluster[job])
        return (
            f"describes this process as {job} {index}, but the cluster has only {count} "
            "(indices start at 0)"
        )
    return ""


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"[\w.\-\[\]:]+:(\d+)", text)
    return match is not None and int(match[1]) < 1 << 16


_EXAMPLE = (
    'It must look like {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}.'
)


def workers_of(strategy: Any) -> Workers:
    """Returns the workers of a strategy.

    With parameter servers, a single process (the coordinator) reads and writes all variables. Only
    under `MultiWorkerMirroredStrategy` do several workers hold all variables.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Workers()
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict() if resolver is not None else {}
    names = tuple(
        f"{job}:{index}"
        for job in ("chief", "worker")
        for index in range(len(cluster.get(job, ())))
    )
    if len(names) < 2:
        return Workers()
    return Workers(names.index(f"{resolver.task_type}:{resolver.task_id}"), names)
