"""What TensorFlow's profiler writes, and the names it gives to what it saw."""

from __future__ import annotations

import re
from typing import Any

from tensorflow.tsl.profiler.protobuf import xplane_pb2

# A call of a function that runs by itself: when it begins, and when it is done.
CALL_BEGINS = "ExecutorState::ProcessAsync::Start"
CALL_DONE = "ExecutorState::ProcessAsync::Done"
# What brings a step its batch.
NEXT_BATCH = re.compile(r"^(IteratorGetNextOp::DoCompute|GetNextFromShard\d+)$")


def parse_trace(data: bytes) -> Any:
    """The planes, lines and events of a trace."""
    return xplane_pb2.XSpace.FromString(data)
