"""A Keras model as a flat list of layer calls.

Keras represents a model as nested graphs of nodes. To find places to cut, this file lists every
call of every layer, including those inside nested models, in the order in which Keras runs them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import tree

from keras_mgpu.internals.identity import IdentityMap, unique
from keras_mgpu.internals.keras_graph import (
    Functional,
    compute_output_spec,
    fill_in,
    graph_of,
    nodes_in_order,
    pack_outputs,
    standardize_inputs,
    takes_training,
)

Value = Any  # What a layer takes or returns: a tensor, or a nested structure of tensors.


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of one layer.

    Attributes:
        name: A unique name: the path of the layer inside nested models, followed by `@2`, `@3`, …
            for further calls.
        layer: The layer or operation.
        inputs: The numbers of the values it reads.
        outputs: The numbers of the values it produces.
        run: `run(values, training)` returns the output values.
        input_specs: Its symbolic inputs, if the graph of the model contains them.
        output_specs: Its symbolic outputs, if the graph of the model contains them.
        is_entry: Whether this call only converts the inputs of a nested model. It costs nothing
            and always stays with the next call.
    """

    name: str
    layer: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run: Callable[[Sequence[Value], bool], list[Value]]
    input_specs: tuple[keras.KerasTensor, ...] = ()
    output_specs: tuple[keras.KerasTensor, ...] = ()
    is_entry: bool = False


@dataclass(frozen=True, eq=False)
class LayerCalls:
    """A whole model: its calls in order, and the values it takes and returns.

    Attributes:
        calls: All calls, in an order in which they can run.
        inputs: The numbers of the values that the model takes.
        outputs: The numbers of the values that the model returns.
        standardize: Converts the inputs given by a user to the values of `inputs`.
        pack_outputs: Converts the values of `outputs` to the output structure of the model.
        output_spec: Returns the symbolic outputs of the model for given inputs.
        one_per_stage: Whether each call must be a separate stage.
    """

    calls: tuple[LayerCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    standardize: Callable[[Value], list[Value]]
    pack_outputs: Callable[[Sequence[Value]], Value]
    output_spec: Callable[[Value], Value]
    one_per_stage: bool = False

    def run(self, inputs: Value, training: bool) -> Value:
        """Runs all calls in order, regardless of stages."""
        values = dict(zip(self.inputs, self.standardize(inputs)))
        for call in self.calls:
            read = [values[number] for number in call.inputs]
            values.update(zip(call.outputs, call.run(read, training)))
        return self.pack_outputs([values[number] for number in self.outputs])


def from_model(model: keras.Model) -> LayerCalls | None:
    """Flattens a Sequential or Functional model. Returns `None` if it has no graph of layers."""
    graph = graph_of(model)
    if graph is None:
        return None
    builder = _Builder()
    inputs = [builder.new_value() for _ in graph.inputs]
    outputs = builder.add_graph(graph, inputs, prefix="")

    return LayerCalls(
        calls=tuple(builder.calls),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        standardize=functools.partial(standardize_inputs, graph),
        pack_outputs=functools.partial(pack_outputs, graph),
        output_spec=lambda inputs: pack_outputs(graph, graph.outputs),
    )


def from_stages(layers: Sequence[keras.Layer]) -> LayerCalls:
    """Chains a list of layers, one per stage. Each takes the output of the previous one."""
    builder = _Builder()
    first = last = builder.new_value()
    for layer in layers:
        last = builder.add_chained(layer, last)

    def run_all(inputs: Value) -> Value:
        for call in builder.calls:
            (inputs,) = call.run([inputs], False)
        return inputs

    return LayerCalls(
        calls=tuple(builder.calls),
        inputs=(first,),
        outputs=(last,),
        standardize=lambda inputs: [inputs],
        pack_outputs=lambda values: values[0],
        output_spec=lambda inputs: compute_output_spec(run_all, inputs),
        one_per_stage=True,
    )


# For symbolic tensors of a graph, the numbers of the values they stand for.
Numbers = IdentityMap[keras.KerasTensor, int]


class _Builder:
    """Collects the calls of nested graphs and numbers their values."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self._num_values = 0
        self._times_called: Counter[str] = Counter()

    def new_value(self) -> int:
        self._num_values += 1
        return self._num_values - 1

    def add_graph(self, graph: Functional, inputs: Sequence[int], prefix: str) -> list[int]:
        """Adds all calls of a graph with the given inputs. Returns the numbers of its outputs."""
        numbers: Numbers = IdentityMap(zip(graph.inputs, inputs))
        for node in nodes_in_order(graph):
            nested = _nested_graph(node)
            if nested is None:
                outputs = self._add_node(node, numbers, prefix)
            else:
                path = f"{prefix}{node.operation.name}/"
                entered = self._add_entry(node, nested, numbers, path)
                outputs = self.add_graph(nested, entered, path)
            numbers.update(zip(node.outputs, outputs))
        return [numbers[tensor] for tensor in graph.outputs]

    def add_chained(self, layer: keras.Layer, value: int) -> int:
        """Adds a layer that takes and returns one value of any structure."""
        output = self.new_value()

        def run(values: Sequence[Value], training: bool) -> list[Value]:
            return [_call(layer, (values[0],), {}, training)]

        self._append(layer.name, layer, (value,), (output,), run)
        return output

    def _add_node(self, node: Any, numbers: Numbers, prefix: str) -> list[int]:
        tensors = unique(node.input_tensors)
        outputs = [self.new_value() for _ in node.outputs]

        def run(values: Sequence[Value], training: bool) -> list[Value]:
            args, kwargs = fill_in(node, tensors, values)
            flat: list[Value] = tree.flatten(_call(node.operation, args, kwargs, training))
            return flat

        self._append(
            f"{prefix}{node.operation.name}",
            node.operation,
            tuple(numbers[tensor] for tensor in tensors),
            tuple(outputs),
            run,
            input_specs=tuple(tensors),
            output_specs=tuple(node.outputs),
        )
        return outputs

    def _add_entry(self, node: Any, nested: Functional, numbers: Numbers, path: str) -> list[int]:
        tensors = list(node.input_tensors)
        outputs = [self.new_value() for _ in nested.inputs]

        def run(values: Sequence[Value], training: bool) -> list[Value]:
            args, _ = fill_in(node, tensors, values)
            return standardize_inputs(nested, args[0])

        self._append(
            f"{path}inputs",
            node.operation,
            tuple(numbers[tensor] for tensor in tensors),
            tuple(outputs),
            run,
            is_entry=True,
        )
        return outputs

    def _append(
        self,
        name: str,
        layer: Any,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        run: Callable[[Sequence[Value], bool], list[Value]],
        **rest: Any,
    ) -> None:
        self._times_called[name] += 1
        times = self._times_called[name]
        numbered = name if times == 1 else f"{name}@{times}"
        self.calls.append(LayerCall(numbered, layer, inputs, outputs, run, **rest))


def _nested_graph(node: Any) -> Functional | None:
    """Returns the graph of a nested model, if running its layers is equivalent to calling it."""
    graph = graph_of(node.operation)
    arguments = node.arguments
    given = {name for name, value in arguments.kwargs.items() if value is not None}
    is_plain_call = len(arguments.args) == 1 and given <= {"training"}
    has_own_effects = getattr(node.operation, "activity_regularizer", None) is not None
    return graph if is_plain_call and not has_own_effects else None


def _call(operation: Any, args: Any, kwargs: dict[str, Any], training: bool) -> Value:
    """Calls a layer as a Functional model does, with `training` if the layer supports it."""
    if takes_training(operation):
        kwargs = {**kwargs, "training": training}
    return operation(*args, **kwargs)
