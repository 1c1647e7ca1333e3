"""Cuts a row of layers into stages of even compute.

Balancing is arithmetic on numbers that stand between the model and its plan, so it needs no model
to be tried, tested or explained.
"""

from __future__ import annotations

import difflib
import json
import reprlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import inf


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs.

    Args:
        name: Unique name; a path such as `"resnet50/conv1_conv"` for a layer of a nested model,
            and `"dense@2"` for the second call of the layer `"dense"`.
        compute: Operations a sample.
        parameters: Number of weights.
        weight_bytes: Bytes that the weights take.
        cut_bytes: Bytes a sample that cross a cut right behind this layer.
    """

    name: str
    compute: int
    parameters: int
    weight_bytes: int
    cut_bytes: int

    def __post_init__(self) -> None:
        for field in ("compute", "parameters", "weight_bytes", "cut_bytes"):
            value = getattr(self, field)
            # Anything but a Python int (a float, a fixed-width NumPy integer) could round or
            # overflow in the sums, and the balance would no longer be exact.
            if type(value) is not int:
                raise TypeError(
                    f"`{field}` of layer {self.name!r} must be an int. Received: {field}={value!r}"
                )
            if value < 0:
                raise ValueError(
                    f"`{field}` of layer {self.name!r} must not be negative. "
                    f"Received: {field}={value}"
                )


@dataclass(frozen=True)
class StagePlan:
    """The layers of one stage, with their costs summed.

    `cut_bytes` is what a sample sends over the cut behind the stage: 0 for the last stage.
    """

    layers: tuple[str, ...]
    compute: int
    parameters: int
    weight_bytes: int
    cut_bytes: int


@dataclass(frozen=True)
class PartitionPlan:
    """Which layers make up which stage.

    Example:

    >>> costs = [LayerCost(name, 500, 1_000, 4_000, 256) for name in ("a", "b", "c", "d")]
    >>> print(balance(costs, 2).table(devices=["/GPU:0", "/GPU:1"]))
    stage  device  layers  first  last  compute  share  parameters  weights  cut a sample
        0  /GPU:0       2  a      b       1.0 k  50.0%       2,000  7.8 KiB         256 B
        1  /GPU:1       2  c      d       1.0 k  50.0%       2,000  7.8 KiB             -
    """

    stages: tuple[StagePlan, ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(stage.layers for stage in self.stages):
            raise ValueError(
                "A plan needs at least one stage, and every stage at least one layer. "
                f"Received: stages={self.stages}"
            )

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def cuts(self) -> tuple[str, ...]:
        """Name of the last layer of each stage but the last."""
        return tuple(stage.layers[-1] for stage in self.stages[:-1])

    @property
    def ends(self) -> tuple[int, ...]:
        """Index one past the last layer of each stage."""
        return tuple(accumulate(len(stage.layers) for stage in self.stages))

    @property
    def imbalance(self) -> float:
        """Compute of the largest stage over that of the mean stage: 1 is even."""
        total = sum(stage.compute for stage in self.stages)
        if not total:
            return 1.0
        return max(stage.compute for stage in self.stages) * self.num_stages / total

    def table(self, devices: Sequence[str] | None = None) -> str:
        """Returns a plain text table of a row a stage.

        Args:
            devices: One device string a stage, for a column of its own. Defaults to no column.
        """
        if devices is not None and len(devices) != self.num_stages:
            raise ValueError(
                f"`devices` must have one entry a stage, {self.num_stages} in all. "
                f"Received: devices={devices}"
            )
        return _table(self.stages, devices)

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> str:
        return json.dumps({"stages": [asdict(stage) for stage in self.stages]})

    @classmethod
    def from_json(cls, text: str) -> PartitionPlan:
        try:
            stages = json.loads(text)["stages"]
            return cls(
                tuple(StagePlan(**{**stage, "layers": tuple(stage["layers"])}) for stage in stages)
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"`text` is not the JSON of a PartitionPlan. Received: text={reprlib.repr(text)}"
            ) from error


def balance(costs: Sequence[LayerCost], num_stages: int) -> PartitionPlan:
    """Returns the best plan of `num_stages` stages.

    The largest stage computes as little as possible; among such plans the cuts carry the fewest
    bytes; among those the cuts come earliest.

    Example:

    >>> costs = [LayerCost(f"dense_{i}", compute, 0, 0, 8) for i, compute in enumerate([3, 1, 4])]
    >>> balance(costs, 2).cuts
    ('dense_1',)

    Args:
        costs: The layers in the order in which they run.
        num_stages: How many stages to make.
    """
    _check_names(costs)
    _check_num_stages(num_stages, len(costs))
    before = [0, *accumulate(cost.compute for cost in costs)]
    limit = _smallest_limit(before, num_stages, max(cost.compute for cost in costs))
    return _plan(costs, _cheapest_ends(before, costs, num_stages, limit))


def cut_after(costs: Sequence[LayerCost], names: Sequence[str]) -> PartitionPlan:
    """Returns the plan whose stages end with the named layers.

    Example:

    >>> names = ["input", "resnet/conv", "resnet/relu", "dense"]
    >>> costs = [LayerCost(name, 1, 0, 0, 8) for name in names]
    >>> cut_after(costs, ["resnet"]).cuts
    ('resnet/relu',)
    >>> cut_after(costs, ["conv", "input"]).cuts
    ('input', 'resnet/conv')

    Args:
        costs: The layers in the order in which they run.
        names: Where to cut, in any order. Each is the name of a layer, or of a nested model, which
            is cut behind its last layer. The outer part of a path may be left out where what is
            left can mean one thing only; a full name is always taken as it stands.
    """
    _check_names(costs)
    _check_cut_names(names)
    ends: dict[int, str] = {}
    for name in names:
        end = _find_end(costs, name)
        if end == len(costs):
            raise ValueError(
                f"A cut after {costs[-1].name!r}, the last layer, would leave an empty stage. "
                f"Received: cuts={list(names)}"
            )
        if end in ends:
            raise ValueError(
                f"{ends[end]!r} and {name!r} both cut after {costs[end - 1].name!r}. "
                f"Received: cuts={list(names)}"
            )
        ends[end] = name
    return _plan(costs, (*sorted(ends), len(costs)))


def readable_bytes(count: float) -> str:
    """Returns a number of bytes for people.

    >>> readable_bytes(512), readable_bytes(16 * 1024**3)
    ('512 B', '16.0 GiB')
    """
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _check_names(costs: Sequence[LayerCost]) -> None:
    if not costs:
        raise ValueError("There must be at least one layer to plan for. Received: costs=[]")
    repeated = [name for name, times in Counter(cost.name for cost in costs).items() if times > 1]
    if repeated:
        raise ValueError(
            f"The names of the layers in `costs` must be unique. Received: repeated={repeated}"
        )


def _check_num_stages(num_stages: int, num_layers: int) -> None:
    if type(num_stages) is not int:
        raise TypeError(f"`num_stages` must be an int. Received: num_stages={num_stages!r}")
    if num_stages < 1:
        raise ValueError(f"`num_stages` must be at least 1. Received: num_stages={num_stages}")
    if num_stages > num_layers:
        raise ValueError(
            "Every stage needs at least one layer, but there are more stages than layers. "
            f"Received: num_stages={num_stages}, with {num_layers} layers"
        )


def _check_cut_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"`cuts` must be a list of layer names. Received: cuts={names!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`cuts` must hold names of layers only. Received: {name!r} in cuts={list(names)}"
            )


def _smallest_limit(before: Sequence[int], num_stages: int, largest_layer: int) -> int:
    """Returns the least compute of the largest stage, by bisection.

    `before[i]` is the compute of all layers before layer i.
    """
    low = max(largest_layer, -(-before[-1] // num_stages))
    high = before[-1]
    while low < high:
        middle = (low + high) // 2
        # Fewer stages than asked for will do: there are enough layers to split some of them.
        if _num_stages_needed(before, middle) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return low


def _num_stages_needed(before: Sequence[int], limit: int) -> int:
    """Counts the stages that come about when each takes all that fits into `limit`."""
    end = count = 0
    while end < len(before) - 1:
        end = _furthest_end(before, end, limit)
        count += 1
    return count


def _furthest_end(before: Sequence[int], start: int, limit: int) -> int:
    return bisect_right(before, before[start] + limit) - 1


def _cheapest_ends(
    before: Sequence[int], costs: Sequence[LayerCost], num_stages: int, limit: int
) -> tuple[int, ...]:
    """Returns the ends of the stages that keep to `limit` and cut the fewest bytes.

    Works from the back: with the best way to lay out the layers from each one on in k stages at
    hand, the best way in k + 1 stages is a choice of where the first of them ends.
    """
    num_layers = len(costs)
    furthest = [_furthest_end(before, start, limit) for start in range(num_layers)]
    # In one stage: nothing to cut, if all fits. Behind the last layer no stage can start.
    fewest: list[float] = [0 if end == num_layers else inf for end in furthest] + [inf]
    choices = []
    for _ in range(num_stages - 1):
        fewest, first_ends = _one_more_stage(fewest, costs, furthest)
        choices.append(first_ends)
    ends = [0]
    for first_ends in reversed(choices):
        ends.append(first_ends[ends[-1]])
    return (*ends[1:], num_layers)


def _one_more_stage(
    fewest: Sequence[float], costs: Sequence[LayerCost], furthest: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Puts one more stage before the best layouts known.

    Returns, for each layer to start with, the fewest bytes and the end of the added stage.

    Both borders of the ends to choose from move one way only, so a queue that drops whatever can
    no longer win (a sliding minimum) takes time in proportion to the layers.
    """
    result: list[float] = [inf] * len(fewest)
    first_ends = [0] * len(costs)
    window: deque[tuple[float, int]] = deque()
    for start in reversed(range(len(costs))):
        end = start + 1
        value = costs[start].cut_bytes + fewest[end]
        # Of equal values the earlier end stays: cuts come as early as they can.
        while window and window[0][0] >= value:
            window.popleft()
        window.appendleft((value, end))
        while window[-1][1] > furthest[start]:
            window.pop()
        result[start], first_ends[start] = window[-1]
    return result, first_ends


def _plan(costs: Sequence[LayerCost], ends: Sequence[int]) -> PartitionPlan:
    starts = (0, *ends[:-1])
    return PartitionPlan(
        tuple(
            _stage(costs[start:end], is_last=end == len(costs))
            for start, end in zip(starts, ends, strict=True)
        )
    )


def _stage(costs: Sequence[LayerCost], is_last: bool) -> StagePlan:
    return StagePlan(
        layers=tuple(cost.name for cost in costs),
        compute=sum(cost.compute for cost in costs),
        parameters=sum(cost.parameters for cost in costs),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        cut_bytes=0 if is_last else costs[-1].cut_bytes,
    )


def _find_end(costs: Sequence[LayerCost], name: str) -> int:
    """Returns the index one past the layer, or the nested model's last layer, called `name`."""
    ends = _ends_by_path(costs)
    if name in ends:
        return ends[name]
    paths = [path for path in ends if path.endswith(f"/{name}")]
    if not paths:
        raise ValueError(
            f"There is no layer to cut after of that name. {_suggestion(costs, ends, name)} "
            f"Received: {name!r} in cuts"
        )
    if len(paths) > 1:
        raise ValueError(
            f"The name of a cut must mean one layer only, but this one may be any of {paths}. "
            f"Received: {name!r} in cuts"
        )
    return ends[paths[0]]


def _ends_by_path(costs: Sequence[LayerCost]) -> dict[str, int]:
    """Maps each layer and each nested model around it to the index one past its last layer."""
    ends = {}
    for end, cost in enumerate(costs, start=1):
        parts = cost.name.split("/")
        for depth in range(1, len(parts)):
            ends["/".join(parts[:depth])] = end
    # Last, so that a layer keeps its own name though a nested model should share it.
    return ends | {cost.name: end for end, cost in enumerate(costs, start=1)}


def _suggestion(costs: Sequence[LayerCost], paths: Collection[str], name: str) -> str:
    # A person may have meant a path or its last part; a full path is always taken as it stands.
    spellings = {path.split("/")[-1]: path for path in paths} | {path: path for path in paths}
    near = difflib.get_close_matches(name, spellings, n=3)
    if near:
        meant = dict.fromkeys(spellings[spelling] for spelling in near)
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    shown = ", ".join(repr(cost.name) for cost in costs[:8])
    more = f" and {len(costs) - 8} more" if len(costs) > 8 else ""
    return f"The layers are {shown}{more}."


def _table(stages: Sequence[StagePlan], devices: Sequence[str] | None) -> str:
    total = sum(stage.compute for stage in stages) or 1
    columns = [(">", "stage", [str(index) for index in range(len(stages))])]
    if devices is not None:
        columns.append(("<", "device", list(devices)))
    columns += [
        (">", "layers", [str(len(stage.layers)) for stage in stages]),
        ("<", "first", [stage.layers[0] for stage in stages]),
        ("<", "last", [stage.layers[-1] for stage in stages]),
        (">", "compute", [_readable_count(stage.compute) for stage in stages]),
        (">", "share", [f"{stage.compute / total:.1%}" for stage in stages]),
        (">", "parameters", [f"{stage.parameters:,}" for stage in stages]),
        (">", "weights", [readable_bytes(stage.weight_bytes) for stage in stages]),
        (">", "cut a sample", [*(readable_bytes(stage.cut_bytes) for stage in stages[:-1]), "-"]),
    ]
    padded = [_padded(align, [title, *cells]) for align, title, cells in columns]
    return "\n".join("  ".join(row).rstrip() for row in zip(*padded, strict=True))


def _padded(align: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, cells))
    return [f"{cell:{align}{width}}" for cell in cells]


def _readable_count(count: float) -> str:
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P"))


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    if count < base:
        return f"{count} {units[0]}".rstrip()
    power = 1
    # Measured on what is shown: 1,048,575 bytes are 1.0 MiB, not 1024.0 KiB.
    while round(count / base**power, 1) >= base and power < len(units) - 1:
        power += 1
    return f"{count / base**power:.1f} {units[power]}"
