"""Partitions a chain of layers into stages of balanced cost.

Balancing is arithmetic on the costs of layers. It needs no model.
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
    """The cost of one layer.

    Args:
        name: String, a unique name. It is a path such as `"resnet50/conv1_conv"` for a layer of a
            nested model, and `"dense@2"` for the second call of the layer `"dense"`.
        compute: Integer, the number of operations per sample.
        parameters: Integer, the number of weights.
        weight_bytes: Integer, the size of the weights in bytes.
        cut_bytes: Integer, the bytes per sample that cross a cut right after this layer.
    """

    name: str
    compute: int
    parameters: int
    weight_bytes: int
    cut_bytes: int

    def __post_init__(self) -> None:
        for field in ("compute", "parameters", "weight_bytes", "cut_bytes"):
            value = getattr(self, field)
            # Other types (a float, a fixed-width NumPy integer) could round or overflow in the
            # sums, and the balance would no longer be exact.
            if type(value) is not int:
                raise TypeError(
                    f"`{field}` of layer {self.name!r} must be an integer. "
                    f"Received: {field}={value!r}"
                )
            if value < 0:
                raise ValueError(
                    f"`{field}` of layer {self.name!r} must be non-negative. "
                    f"Received: {field}={value}"
                )


@dataclass(frozen=True)
class StagePlan:
    """The layers of one stage, and the sums of their costs.

    `cut_bytes` is the number of bytes per sample that cross the cut after the stage, and 0 for the
    last stage.
    """

    layers: tuple[str, ...]
    compute: int
    parameters: int
    weight_bytes: int
    cut_bytes: int


@dataclass(frozen=True)
class PartitionPlan:
    """The layers of each stage.

    Example:

    >>> costs = [LayerCost(name, 500, 1_000, 4_000, 256) for name in ("a", "b", "c", "d")]
    >>> print(balance(costs, 2).table(devices=["/GPU:0", "/GPU:1"]))
    stage  device  layers  first  last  compute  share  parameters  weights  sent per sample
        0  /GPU:0       2  a      b       1.0 k  50.0%       2,000  7.8 KiB            256 B
        1  /GPU:1       2  c      d       1.0 k  50.0%       2,000  7.8 KiB                -
    """

    stages: tuple[StagePlan, ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(stage.layers for stage in self.stages):
            raise ValueError(
                "A plan must have at least one stage, and each stage at least one layer. "
                f"Received: stages={self.stages}"
            )

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The name of the last layer of each stage, except for the last stage."""
        return tuple(stage.layers[-1] for stage in self.stages[:-1])

    @property
    def ends(self) -> tuple[int, ...]:
        """The index after the last layer of each stage."""
        return tuple(accumulate(len(stage.layers) for stage in self.stages))

    @property
    def imbalance(self) -> float:
        """The compute of the largest stage relative to the mean. 1 is perfectly balanced."""
        total = sum(stage.compute for stage in self.stages)
        if not total:
            return 1.0
        return max(stage.compute for stage in self.stages) * self.num_stages / total

    def table(self, devices: Sequence[str] | None = None) -> str:
        """Returns the plan as a text table with one row per stage.

        Args:
            devices: Optional list of device strings, one per stage, shown in their own column.
                Defaults to `None`.
        """
        if devices is not None and len(devices) != self.num_stages:
            raise ValueError(
                f"`devices` must contain {self.num_stages} entries, one per stage. "
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
                "`text` must be the output of `PartitionPlan.to_json`. "
                f"Received: text={reprlib.repr(text)}"
            ) from error


def balance(costs: Sequence[LayerCost], num_stages: int) -> PartitionPlan:
    """Returns the most balanced plan with `num_stages` stages.

    The compute of the largest stage is as small as possible. Among such plans, the fewest bytes
    cross the cuts. Among those, the cuts come as early as possible.

    Example:

    >>> costs = [LayerCost(f"dense_{i}", compute, 0, 0, 8) for i, compute in enumerate([3, 1, 4])]
    >>> balance(costs, 2).cuts
    ('dense_1',)

    Args:
        costs: List of `LayerCost`s, in the order in which the layers run.
        num_stages: Integer, the number of stages.
    """
    _check_names(costs)
    _check_num_stages(num_stages, len(costs))
    before = [0, *accumulate(cost.compute for cost in costs)]
    limit = _smallest_limit(before, num_stages, max(cost.compute for cost in costs))
    return _plan(costs, _cheapest_ends(before, costs, num_stages, limit))


def cut_after(costs: Sequence[LayerCost], names: Sequence[str]) -> PartitionPlan:
    """Returns the plan whose stages end after the named layers.

    Example:

    >>> names = ["input", "resnet/conv", "resnet/relu", "dense"]
    >>> costs = [LayerCost(name, 1, 0, 0, 8) for name in names]
    >>> cut_after(costs, ["resnet"]).cuts
    ('resnet/relu',)
    >>> cut_after(costs, ["conv", "input"]).cuts
    ('input', 'resnet/conv')

    Args:
        costs: List of `LayerCost`s, in the order in which the layers run.
        names: List of strings, the names of the layers to cut after, in any order. The name of a
            nested model stands for its last layer. The first parts of a path can be omitted if the
            rest is unambiguous. A full path always takes precedence.
    """
    _check_names(costs)
    _check_cut_names(names)
    ends: dict[int, str] = {}
    for name in names:
        end = _find_end(costs, name)
        if end == len(costs):
            raise ValueError(
                f"A cut after the last layer, {costs[-1].name!r}, would leave an empty stage. "
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
    """Returns a number of bytes as human-readable text.

    >>> readable_bytes(512), readable_bytes(16 * 1024**3)
    ('512 B', '16.0 GiB')
    """
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _check_names(costs: Sequence[LayerCost]) -> None:
    if not costs:
        raise ValueError("`costs` must contain at least one layer. Received: costs=[]")
    repeated = [name for name, times in Counter(cost.name for cost in costs).items() if times > 1]
    if repeated:
        raise ValueError(
            f"The layer names in `costs` must be unique. Received: repeated={repeated}"
        )


def _check_num_stages(num_stages: int, num_layers: int) -> None:
    if type(num_stages) is not int:
        raise TypeError(f"`num_stages` must be an integer. Received: num_stages={num_stages!r}")
    if num_stages < 1:
        raise ValueError(f"`num_stages` must be at least 1. Received: num_stages={num_stages}")
    if num_stages > num_layers:
        raise ValueError(
            f"The model has only {num_layers} layers, and each stage needs at least one. Use fewer "
            f"stages or devices. Received: num_stages={num_stages}"
        )


def _check_cut_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"`cuts` must be a list of layer names. Received: cuts={names!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`cuts` must contain only layer names. Received: {name!r} in cuts={list(names)}"
            )


def _smallest_limit(before: Sequence[int], num_stages: int, largest_layer: int) -> int:
    """Returns the smallest possible compute of the largest stage, by bisection.

    `before[i]` is the compute of all layers before layer i.
    """
    low = max(largest_layer, -(-before[-1] // num_stages))
    high = before[-1]
    while low < high:
        middle = (low + high) // 2
        # Fewer stages than requested are fine: there are enough layers to divide some of them.
        if _num_stages_needed(before, middle) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return low


def _num_stages_needed(before: Sequence[int], limit: int) -> int:
    """Returns the number of stages if each takes as many layers as fit into `limit`."""
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
    """Returns the ends of the stages within `limit` for which the fewest bytes cross the cuts.

    Dynamic programming from the back: given the best k stages for the layers from each start on,
    the best k + 1 stages follow from choosing where the first of them ends.
    """
    num_layers = len(costs)
    furthest = [_furthest_end(before, start, limit) for start in range(num_layers)]
    # One stage needs no cut, if all layers fit. No stage can start after the last layer.
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
    """Adds one more stage before the best stages found so far.

    Returns, for each layer to start with, the fewest bytes and the end of the added stage. Both
    bounds of the possible ends only ever move in one direction, so a sliding minimum takes linear
    time.
    """
    result: list[float] = [inf] * len(fewest)
    first_ends = [0] * len(costs)
    window: deque[tuple[float, int]] = deque()
    for start in reversed(range(len(costs))):
        end = start + 1
        value = costs[start].cut_bytes + fewest[end]
        # Of equal values the earlier end wins, so that cuts come as early as possible.
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
    """Returns the index after the layer, or the last layer of the nested model, called `name`."""
    ends = _ends_by_path(costs)
    if name in ends:
        return ends[name]
    paths = [path for path in ends if path.endswith(f"/{name}")]
    if not paths:
        raise ValueError(
            f"`cuts` must contain names of layers of the model. {_suggestion(costs, ends, name)} "
            f"Received: {name!r} in cuts"
        )
    if len(paths) > 1:
        raise ValueError(
            f"A name in `cuts` must be unambiguous, but this one matches {paths}. Use one of these "
            f"paths instead. Received: {name!r} in cuts"
        )
    return ends[paths[0]]


def _ends_by_path(costs: Sequence[LayerCost]) -> dict[str, int]:
    """Maps each layer and each nested model to the index after its last layer."""
    ends = {}
    for end, cost in enumerate(costs, start=1):
        parts = cost.name.split("/")
        for depth in range(1, len(parts)):
            ends["/".join(parts[:depth])] = end
    # Layers come last, so that a layer takes precedence over a nested model of the same name.
    return ends | {cost.name: end for end, cost in enumerate(costs, start=1)}


def _suggestion(costs: Sequence[LayerCost], paths: Collection[str], name: str) -> str:
    # The name may be meant as a path or as its last part. Full paths take precedence.
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
        (">", "sent per sample", [*map(_readable_cut, stages[:-1]), "-"]),
    ]
    padded = [_padded(align, [title, *cells]) for align, title, cells in columns]
    return "\n".join("  ".join(row).rstrip() for row in zip(*padded, strict=True))


def _readable_cut(stage: StagePlan) -> str:
    return readable_bytes(stage.cut_bytes)


def _padded(align: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, cells))
    return [f"{cell:{align}{width}}" for cell in cells]


def _readable_count(count: float) -> str:
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P"))


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    if count < base:
        return f"{count} {units[0]}".rstrip()
    power = 1
    # Compares the rounded value, so that 1,048,575 bytes are 1.0 MiB, not 1024.0 KiB.
    while round(count / base**power, 1) >= base and power < len(units) - 1:
        power += 1
    return f"{count / base**power:.1f} {units[power]}"
