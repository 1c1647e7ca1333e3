"""Which of the processes that train one model this is."""

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
    """The processes that each hold a copy of the variables and save together.

    Args:
        index: The number of this one. Number 0 brings the parts together.
        names: All of them, such as `("worker:0", "worker:1")`.
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
        """Of things with their sizes, those that this worker takes; all workers reckon alike."""
        loads = [0] * self.count
        mine = []
        for thing, size in sorted(sizes, key=lambda pair: pair[1], reverse=True):
            lightest = loads.index(min(loads))
            loads[lightest] += size
            if lightest == self.index:
                mine.append(thing)
        return mine


def is_unreachable(name: str) -> bool:
    """Whether a worker's process does not answer, as far as TensorFlow can tell."""
    job, _, index = name.partition(":")
    return tf_devices.is_unreachable(f"/job:{job}/replica:0/task:{index}")


def check_tf_config() -> None:
    """Says what is wrong with the environment variable TF_CONFIG, which tells a worker its place.

    Raises:
        ValueError: If it is there, and cannot be right.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return
    try:
        complaint = _complaint(json.loads(text))
    except json.JSONDecodeError as error:
        complaint = f"is no JSON: {error}"
    except KeyError as error:
        complaint = f"has no {error}"
    except (ValueError, TypeError, AttributeError):
        complaint = "has not the right form"
    if complaint:
        raise ValueError(f"TF_CONFIG {complaint}. {_EXAMPLE} Received: {text}")


def _complaint(config: Any) -> str:
    """What is wrong; nothing if that is all right."""
    cluster, task = config["cluster"], config["task"]
    job, index = task["type"], task["index"]
    if isinstance(index, bool) or not float(index).is_integer():
        return f"has a task with an index that is no whole number: {index}"
    index = int(index)
    if job not in cluster:
        return f"says that this is a {job!r}, and the cluster has none"
    addresses = [address for each in cluster.values() for address in each]
    if any(not isinstance(each, list) for each in cluster.values()):
        return "must have a list of addresses for each job"
    odd = [each for each in addresses if not _is_address(str(each))]
    if odd:
        return f"has addresses that are not like host:port: {odd}"
    if len(set(addresses)) < len(addresses):
        return "has the same address twice"
    if not 0 <= index < len(cluster[job]):
        count = len(cluster[job])
        return f"says that this is {job} {index}, and the cluster has {count}, counted from 0"
    return ""


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"[\w.\-\[\]:]+:(\d+)", text)
    return match is not None and int(match[1]) < 1 << 16


_EXAMPLE = (
    'It looks like {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}.'
)


def workers_of(strategy: Any) -> Workers:
    """The workers of a strategy.

    With parameter servers one process, the coordinator, reads and writes all variables: it is
    alone. Only with several mirroring workers has each of them all variables.
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
