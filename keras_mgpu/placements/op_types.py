"""What an op does, in the words of the model rather than of TensorFlow's optimizer.

TensorFlow rewrites a graph before it runs it. It fuses `MatMul`, `BiasAdd` and `Relu` into one
`_FusedMatMul` named after the last of them. On many CPUs oneDNN then makes a `_MklMatMul` of every
`MatMul`. Such types have kernels for one kind of device only and mean nothing to a reader.
"""

from __future__ import annotations

import re
from typing import Any

_REWRITTEN = re.compile(r"^_(Mkl)?(Native)?(Fused)?")


def original_type(executed: Any, traced: Any) -> str:
    """The type of an op before TensorFlow rewrote it, such as `"MatMul"`.

    Args:
        executed: The node that ran.
        traced: The node of the same name in the traced graph; `executed` itself if TensorFlow
            added it.

    Returns:
        For fused ops, all of them: `"MatMul+BiasAdd+Relu"`. If several ops were merged into one
        that does not list them, its own type.
    """
    fused = [name.decode() for name in executed.attr["fused_ops"].list.s]
    if fused:
        return "+".join([_REWRITTEN.sub("", executed.op), *fused])
    return str(executed.op if _is_merged(executed.op, traced.op) else traced.op)


def _is_merged(executed: str, traced: str) -> bool:
    """Whether the op stands for more than the one it is named after.

    An example is `_FusedBatchNormEx`, which takes the name of the `Relu` that it includes.
    """
    return executed.startswith("_") and traced not in executed
