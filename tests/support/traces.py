"""Traces as TensorFlow's profiler makes them, with what a test wants to see in them."""

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from keras_mgpu.internals.tf_profiler import CALL_BEGINS, CALL_DONE

SECOND = 10**12  # In the profiler's picoseconds.
SCOPES = {"F": "forward", "R": "recompute", "B": "backward", "W": "weights"}
NAME = 1


def make_trace():
    """A trace of a host on which nothing has happened yet."""
    trace = xplane_pb2.XSpace()
    host = trace.planes.add(name="/host:CPU")
    host.lines.add(timestamp_ns=0)
    host.event_metadata[0].name = CALL_BEGINS
    host.event_metadata[1].name = CALL_DONE
    host.stat_metadata[NAME].name = "name"
    return trace


def add_call(trace, op, begin, end, call="StatefulPartitionedCall"):
    """The call of an op of a pipeline."""
    scope = f"stage_{op.stage}/{SCOPES[op.kind]}/micro_batch_{op.micro_batch}"
    (line,) = trace.planes[0].lines
    for number, time in enumerate((begin, end)):
        event = line.events.add(metadata_id=number, offset_ps=round(time * SECOND))
        event.stats.add(metadata_id=NAME, str_value=f"{scope}/{call}")


def add_kernels(trace, gpu, spans):
    """Kernels of a GPU: name, begin and length in seconds."""
    plane = trace.planes.add(name=f"/device:GPU:{gpu}")
    line = plane.lines.add(timestamp_ns=0)
    for number, (name, begin, seconds) in enumerate(spans):
        plane.event_metadata[number].name = name
        times = {"offset_ps": begin * SECOND, "duration_ps": seconds * SECOND}
        line.events.add(metadata_id=number, **times)
