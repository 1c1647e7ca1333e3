"""TensorFlow's registry of kernels."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from tensorflow.python.framework import kernels


@functools.cache
def registered_kernels() -> dict[str, list[Any]]:
    """All kernels by op: asking for those of one op takes TensorFlow as long as for all."""
    found: dict[str, list[Any]] = defaultdict(list)
    for kernel in kernels.get_all_registered_kernels().kernel:
        found[kernel.op].append(kernel)
    return dict(found)
