"""What in a placement is worth a second look, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keras_mgpu.placements.report_parts import DeviceTotal, LayerPlacement, MovedOps

UNEVEN = 1.3  # How many times its even share a device may hold before a warning.
MAX_NAMES = 3


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def uneven_memory(devices: Sequence[DeviceTotal]) -> list[str]:
    """Devices that hold far more than others. With GPUs, the CPU is left out."""
    used = [each for each in devices if "GPU" in each.device]
    used = used or [each for each in devices if each.num_bytes]
    total = sum(each.num_bytes for each in used)
    return [
        f"{each.device} holds {percent(each.num_bytes, total)} of the memory. An even share for "
        f"{len(used)} devices is {percent(1, len(used))}."
        for each in used
        if len(used) > 1 and each.num_bytes * len(used) > UNEVEN * total
    ]


def far_slots(layers: Iterable[LayerPlacement]) -> list[str]:
    far = [layer for layer in layers if layer.has_far_slots]
    if not far:
        return []
    first = far[0]
    more = f", and {len(far) - 1} more" if len(far) > 1 else ""
    return [
        f"Optimizer slots are not on the device of their weights: {first.path} (weights on "
        f"{', '.join(first.weights_on)}, slots on {', '.join(first.slots_on)}){more}."
    ]


def moved_ops(moved: Iterable[MovedOps]) -> list[str]:
    """One sentence for each pair of devices and reason."""
    groups: dict[tuple[str, str, str], list[MovedOps]] = {}
    for each in moved:
        groups.setdefault((each.reason, each.asked, each.got), []).append(each)
    found = []
    for (reason, asked, got), moves in groups.items():
        names = _folded(list(dict.fromkeys(each.layer for each in moves)))
        count = sum(each.count for each in moves)
        ops = "op" if count == 1 else "ops"
        found.append(f"{count} {ops} of {names} asked for {asked} but ran on {got}: {reason}.")
    return found


def _folded(names: Sequence[str]) -> str:
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} layers)"
