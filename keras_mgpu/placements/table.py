"""A placement report as tables of at most 60 lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.placements.folding import Foldable, FoldedLine, fold_rows
from keras_mgpu.placements.report import TRACED, VARIABLES, PlacementReport
from keras_mgpu.placements.report_parts import LayerPlacement
from keras_mgpu.placements.report_warnings import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_LINES = 60
MAX_EDGES = 8
MAX_WARNINGS = 8
LAYER_COLUMNS = (
    "layer",
    "kind",
    "stage",
    "asked for",
    "ran on",
    "parameters",
    "weights",
    "slots",
    "activations",
)
DEVICE_COLUMNS = ("device", "layers", "ops", "weights", "slots", "activations", "share")
EDGE_COLUMNS = ("from", "to", "tensors per step", "bytes per step", "link")
Rows = Sequence[Sequence[str]]


def renderables(report: PlacementReport) -> list[RenderableType]:
    """Everything to print, from top to bottom."""
    from rich.text import Text

    devices, edges = device_rows(report), edge_rows(report)
    warnings = _some(list(report.warnings), MAX_WARNINGS, "warnings")
    used = 2 + (2 + len(devices)) + (2 + len(edges) if edges else 0) + len(warnings) + 2
    layers = layer_rows(report, MAX_LINES - used)
    parts: list[RenderableType] = [Text(title(report), style="bold")]
    parts.append(_table(LAYER_COLUMNS, layers, num_words=5))
    parts.append(_table(DEVICE_COLUMNS, devices, num_words=1))
    if edges:
        parts.append(_table(EDGE_COLUMNS, edges, num_words=2))
    parts += [Text(f"! {warning}", style="yellow") for warning in warnings]
    return parts


def markdown(report: PlacementReport) -> str:
    """The same as Markdown, for TensorBoard's Text tab."""
    parts = [
        f"**{title(report)}**",
        _markdown(LAYER_COLUMNS, layer_rows(report, MAX_LINES)),
        _markdown(DEVICE_COLUMNS, device_rows(report)),
    ]
    if report.edges or report.collectives:
        parts.append(_markdown(EDGE_COLUMNS, edge_rows(report)))
    parts += [f"- {warning}" for warning in report.warnings]
    return "\n\n".join(parts)


def title(report: PlacementReport) -> str:
    by = f" ({report.strategy})" if report.strategy else ""
    samples = "1 sample" if report.num_samples == 1 else f"{report.num_samples} samples"
    notes = {
        TRACED: "; other processes ran the ops, which are shown as TensorFlow's rules place them",
        VARIABLES: "; no graph was run, so only variables are shown",
    }
    note = notes.get(report.source, "")
    num_idle = sum(map(_is_idle, report.layers))
    idle = f"; layers without ops are not shown ({num_idle})" if num_idle else ""
    return f"Placement of {report.model}{by}, activations of {samples}{note}{idle}"


def layer_rows(report: PlacementReport, limit: int) -> list[tuple[str, ...]]:
    """The layers that ran or hold weights, folded to at most `limit` lines."""
    layers = [layer for layer in report.layers if not _is_idle(layer)]
    moved = {each.layer for each in report.moved}
    lines = fold_rows([_row(layer, layer.path in moved) for layer in layers], max(limit, 10))
    return [_cells(layers, line) for line in lines]


def _is_idle(layer: LayerPlacement) -> bool:
    return not layer.num_ops and not layer.weight_bytes


def _row(layer: LayerPlacement, is_moved: bool) -> Foldable:
    place = (layer.stages, layer.asked, layer.got, layer.weights_on, layer.slots_on, is_moved)
    sizes = (layer.num_parameters, layer.weight_bytes, layer.slot_bytes, layer.activation_bytes)
    looks = (layer.kind or layer.path, place, sizes)
    return Foldable(looks, place, is_odd=is_moved or layer.has_far_slots or not layer.kind)


def _cells(layers: Sequence[LayerPlacement], line: FoldedLine) -> tuple[str, ...]:
    first = layers[line.first]
    group = layers[line.first : line.last + 1] if line.is_sum else [first]
    activations = [layer.activation_bytes for layer in group]
    known = [size for size in activations if size is not None]
    num_parameters = sum(layer.num_parameters for layer in group)
    return (
        _name(layers, line),
        first.kind if len(group) == 1 else "",
        ", ".join(map(str, first.stages)),
        devices_text(first.asked),
        devices_text(first.got) or _weights_only(first),
        f"{num_parameters:,}" if num_parameters else "",
        _size(sum(layer.weight_bytes for layer in group)),
        _size(sum(layer.slot_bytes for layer in group)),
        _size(sum(known)),
    )


def _weights_only(layer: LayerPlacement) -> str:
    """The devices of the weights, for a layer without ops."""
    return f"({', '.join(layer.weights_on)})" if layer.weights_on else ""


def _size(num_bytes: int) -> str:
    return readable_bytes(num_bytes) if num_bytes else ""


def _name(layers: Sequence[LayerPlacement], line: FoldedLine) -> str:
    first, last = layers[line.first].path, layers[line.last].path
    if line.is_sum:
        return f"{first} … {last} ({line.last - line.first + 1} layers)"
    if line.times > 1 and line.block > 1:
        return f"{first} … {last} (block of {line.block}, {line.times} times)"
    return f"{first} … {last} ({line.times} times)" if line.times > 1 else first


def devices_text(replicas: Sequence[Sequence[str]]) -> str:
    """Devices with commas between those of one replica, and bars between replicas."""
    return " | ".join(", ".join(devices) for devices in replicas if devices)


def device_rows(report: PlacementReport) -> list[tuple[str, ...]]:
    total = sum(each.num_bytes for each in report.devices)
    return [
        (
            each.device,
            str(each.num_layers),
            str(each.num_ops),
            _size(each.weight_bytes),
            _size(each.slot_bytes),
            _size(each.activation_bytes),
            percent(each.num_bytes, total),
        )
        for each in report.devices
    ]


def edge_rows(report: PlacementReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            edge.source,
            edge.target,
            str(edge.num_tensors),
            _edge_bytes(edge.num_bytes, edge.num_unknown),
            edge.link,
        )
        for edge in sorted(report.edges, key=lambda edge: -edge.num_bytes)
    ]
    rows += [
        (each.device, "all others", str(each.count), readable_bytes(each.num_bytes), each.op)
        for each in report.collectives
    ]
    if len(rows) > MAX_EDGES:
        more = len(rows) - MAX_EDGES + 1
        rows = [*rows[: MAX_EDGES - 1], (f"and {more} more", "", "", "", "")]
    return rows


def _edge_bytes(num_bytes: int, num_unknown: int) -> str:
    return readable_bytes(num_bytes) + (f" and {num_unknown} unknown" if num_unknown else "")


def _some(texts: list[str], limit: int, what: str) -> list[str]:
    if len(texts) <= limit:
        return texts
    return [*texts[: limit - 1], f"and {len(texts) - limit + 1} more {what}"]


def _table(columns: Sequence[str], rows: Rows, num_words: int) -> RenderableType:
    """The first columns hold words and the others numbers. Empty columns are left out."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    used = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    for index in used:
        is_word = index < num_words or columns[index] == "link"
        table.add_column(columns[index], justify="left" if is_word else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[row[index] for index in used])
    return table


def _markdown(columns: Sequence[str], rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
