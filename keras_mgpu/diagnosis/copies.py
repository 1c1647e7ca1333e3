"""Check: how fast tensors travel between host and devices, and from device to device.

Copies are made inside a function, where TensorFlow sends tensors the way a pipeline does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.report import OK, UNKNOWN, Finding
from keras_mgpu.system.devices import kind_of, short

HOST = "/CPU:0"
LARGE_BYTES, SMALL_BYTES = 64 << 20, 4 << 10
_NUM_ROUNDS = 5


def check_copies(machine: Machine) -> Finding:
    """Measures every route that has a GPU at one of its ends."""
    routes = [(HOST, device) for device in machine.devices]
    routes += [(device, HOST) for device in machine.devices]
    routes += machine.pairs
    routes = [route for route in dict.fromkeys(routes) if "GPU" in map(kind_of, route)]
    if not routes:
        return Finding(UNKNOWN, ("Logical CPU devices share memory: nothing is copied.",))
    copies = [_measure(*route) for route in routes]
    return Finding(OK, tuple(lines_of(copies)), {"copies": copies})


def _measure(source: str, target: str) -> dict[str, Any]:
    return {
        "source": short(source) if source != HOST else "host",
        "target": short(target) if target != HOST else "host",
        "gigabytes_per_second": LARGE_BYTES / 1e9 / _seconds(source, target, LARGE_BYTES),
        "microseconds": 1e6 * _seconds(source, target, SMALL_BYTES),
    }


def _seconds(source: str, target: str, num_bytes: int) -> float:
    """The shortest of a few rounds: the others were disturbed."""
    with tf.device(source):
        tensor = tf.identity(tf.zeros([num_bytes // 4]))

    @tf.function(autograph=False)
    def copy(tensor: tf.Tensor) -> tf.Tensor:
        with tf.device(source):
            tensor = tf.identity(tensor)
        with tf.device(target):
            return tf.identity(tensor)

    return min(_timed(lambda: copy(tensor)) for _ in range(_NUM_ROUNDS + 1))


def _timed(run: Callable[[], Any]) -> float:
    tf.test.experimental.sync_devices()
    begin = time.perf_counter()
    run()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - begin


def lines_of(copies: Sequence[dict[str, Any]]) -> list[str]:
    """One line per direction: the slowest and the fastest route, if there are several."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in copies:
        kind = "device to device"
        if each["source"] == "host":
            kind = "host to device"
        elif each["target"] == "host":
            kind = "device to host"
        groups.setdefault(kind, []).append(each)
    return [f"{kind}: {_range(found)}" for kind, found in groups.items()]


def _range(copies: Sequence[dict[str, Any]]) -> str:
    speeds = sorted(copies, key=lambda each: float(each["gigabytes_per_second"]))
    slow, fast = speeds[0], speeds[-1]
    texts = [f"{each['gigabytes_per_second']:.1f} GB/s" for each in (slow, fast)]
    waits = [each["microseconds"] for each in copies]
    wait = f"{min(waits):.0f} µs for a small tensor"
    if len(copies) == 1:
        return f"{texts[0]}, {wait}"
    return f"{texts[0]} ({slow['source']}→{slow['target']}) to {texts[1]}, at least {wait}"
