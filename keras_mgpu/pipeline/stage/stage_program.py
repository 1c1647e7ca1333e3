"""A traced stage with its gradients, as one function for each kind of op.

A stage is traced once, its gradients are built once, and the graph is cut into the pieces that a
schedule runs one by one. So the time to the first step hardly depends on the number of
micro-batches, and what a micro-batch keeps between two pieces is known exactly.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.model.layer_calls import Value
from keras_mgpu.pipeline.stage.gradients import GradientVariables
from keras_mgpu.pipeline.stage.graph_cut import CutGraph, Piece
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageOutputs, named_outputs
from keras_mgpu.pipeline.stage.value_function import Trace

# A leaf of a value that flows between stages: the value's number, and the leaf's place in it.
Leaf = tuple[int, int]
# What a micro-batch keeps: for tensors of the traced graph, the tensors that stand for them.
Kept = dict[Any, tf.Tensor]


def float_leaves(numbers: Sequence[int], values: Sequence[Value]) -> dict[Leaf, tf.Tensor]:
    """The leaves of values that can have a gradient."""
    return {
        (number, place): leaf
        for number, value in zip(numbers, values)
        for place, leaf in enumerate(tree.flatten(value))
        if isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_complex)
    }


class StageProgram:
    """The functions of a traced stage.

    Args:
        function: The stage.
        trace: Its trace for micro-batches of some layout.
        weights: The weights to find gradients for.
        made: Numbers of the values that stages make, and so can have gradients.
        cotangents: Which of its outputs will be given gradients.
        sums: Where to sum the gradients of the weights, or `None` to return them.
    """

    def __init__(
        self,
        function: StageFunction,
        trace: Trace,
        weights: Sequence[keras.Variable],
        made: Collection[int],
        cotangents: Collection[Leaf],
        sums: GradientVariables | None,
    ) -> None:
        self.cotangents = frozenset(cotangents)
        self._trace = trace
        self._graph = trace.function.graph
        self._stage = function.stage
        self._weights = weights
        num_arguments = len(self._graph.inputs) - len(self._graph.captures)
        self._arguments = tuple(self._graph.inputs[:num_arguments])
        self._must_run = tuple(self._graph.control_outputs)
        _, further = self._argument_values()
        self._handed_in = dict(zip(map(id, function.handed_in), further))
        self._owners = {t.ref(): v for v, t in zip(function.handed_in, further)}
        self._differentiate(made)
        self._summing = self._sum_up(sums)
        self._cut_graph = CutGraph(self._graph)
        self._cut = self._cut_graph.cut(
            self._arguments,
            self._graph.outputs,
            self._given,
            list(self._of_inputs.values()),
            [*_components(self._of_weights), *(op.inputs[1] for op in self._summing)],
            self._must_run,
            list(self._handed_in.values()),
        )

    @property
    def inputs_with_gradients(self) -> list[Leaf]:
        return list(self._of_inputs)

    def make(
        self, kinds: Collection[str], make_piece: Callable[[CutGraph, Piece, str], Any]
    ) -> None:
        """Makes the functions for ops of these kinds.

        Args:
            kinds: The kinds of ops that a schedule has for this stage.
            make_piece: Makes a function of a piece of the graph.
        """
        pieces = self._forward_pieces(kinds) | self._backward_pieces(kinds)
        self._feeds = {name: piece.feeds for name, piece in pieces.items()}
        self._functions = {
            name: make_piece(self._cut_graph, piece, f"stage_{self._stage.index}_{name}")
            for name, piece in pieces.items()
        }

    def rehearse(self, kinds: Collection[str], value: Callable[[tf.Tensor], tf.Tensor]) -> None:
        """Runs every function once.

        Args:
            kinds: The kinds of ops they were made for.
            value: Gives a value of a tensor's form.
        """
        arguments = [self._given_or(value, tensor) for tensor in self._arguments]
        outputs, kept, _ = self._forward_flat(arguments, kinds)
        if "R" in kinds:
            kept, _ = self.recompute(kept)
        made = _by_reference(self._graph.outputs, outputs)
        given = [tf.zeros_like(made[target.ref()]) for target in self._targets]
        _, kept, _ = self.backward(kept, given, and_weights="W" not in kinds)
        if "W" in kinds:
            self.weight_gradients(kept)

    def measure(
        self, value: Callable[[tf.Tensor], tf.Tensor], num_rounds: int
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Runs every function by itself; returns seconds, and bytes kept, by their names.

        Args:
            value: Gives a value of a tensor's form.
            num_rounds: How often each is run after the first time. The median counts.
        """
        kept: Kept = {t.ref(): self._given_or(value, t) for t in self._arguments}
        fetched = {
            "forward": (*self._graph.outputs, *self._cut.forward),
            "recompute": self._cut.forward,
            "backward": (*self._of_inputs.values(), *self._cut.backward),
        }
        seconds = {}
        for name, function in self._functions.items():
            if name == "backward":
                kept |= {g.ref(): tf.ones_like(kept[t.ref()]) for g, t in self._pairs()}
            feeds = [kept[tensor.ref()] for tensor in self._feeds[name]]
            results, seconds[name] = _timed(function, feeds, self._stage.device, num_rounds)
            kept |= _by_reference(fetched.get(name, ()), results)
        for_backward = self._feeds["backward"]
        sizes = {
            "activations": for_backward,
            "for_weights": self._feeds.get("weights", ()),
            "inputs": self._arguments,
        }
        if "weights" in self._feeds:
            sizes["activations"] = self._cut.forward + for_backward
        shared = {tensor.ref() for tensor in (*self._given, *self._handed_in.values())}
        kept = {key: tensor for key, tensor in kept.items() if key not in shared}
        return seconds, {
            name: _num_bytes([kept[t.ref()] for t in tensors if t.ref() in kept])
            for name, tensors in sizes.items()
        }

    def _given_or(self, value: Callable[[tf.Tensor], tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
        """Weights are what they are: to make a second one up may be more than a device holds."""
        owner = self._owners.get(tensor.ref())
        return value(tensor) if owner is None else tf.convert_to_tensor(owner.value)

    def _pairs(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """The placeholder for each gradient that is given, with the output it is for."""
        return zip(self._given, self._targets)

    # What the executor calls. Each call also returns the op that others can wait for.

    def forward(
        self, tensors: Sequence[Any], keep: bool
    ) -> tuple[StageOutputs, Kept, tf.Operation]:
        """Runs the layers; returns also what the backward needs, or is found again from."""
        flat = tf.nest.flatten(list(tensors), expand_composites=True)
        results, kept, ran = self._forward_flat(flat, "" if keep else "R")
        return self._named(results), kept, ran

    def recompute(self, kept: Kept) -> tuple[Kept, tf.Operation]:
        """Runs the layers again, for what the backward needs and for nothing else."""
        results, ran = self._call("recompute", kept)
        return kept | _by_reference(self._cut.forward, results), ran

    def backward(
        self, kept: Kept, given: Sequence[tf.Tensor], and_weights: bool
    ) -> tuple[dict[Leaf, tf.Tensor], Any, tf.Operation]:
        """Returns gradients of the inputs, and those of the weights or what they need."""
        kept = kept | _by_reference(self._given, given)
        results, ran = self._call("backward", kept)
        of_inputs, rest = results[: len(self._of_inputs)], results[len(self._of_inputs) :]
        found = dict(zip(self._of_inputs, of_inputs))
        if and_weights:
            return found, self._in_form(rest), ran
        return found, kept | _by_reference(self._cut.backward, rest), ran

    def weight_gradients(self, kept: Kept) -> tuple[list[Any], tf.Operation]:
        """Returns the gradients of the weights that are not summed up in variables."""
        results, ran = self._call("weights", kept)
        return self._in_form(results), ran

    def _forward_flat(self, flat: Sequence[tf.Tensor], kinds: Collection[str]) -> Any:
        kept = _by_reference(self._arguments, flat)
        results, ran = self._call("forward", kept)
        num_outputs = len(self._graph.outputs)
        if "R" not in kinds:
            kept |= _by_reference(self._cut.forward, results[num_outputs:])
        return results[:num_outputs], kept, ran

    def _call(self, name: str, kept: Kept) -> tuple[list[tf.Tensor], Any]:
        return self._functions[name]([kept[tensor.ref()] for tensor in self._feeds[name]])

    # What the functions are made of.

    def _forward_pieces(self, kinds: Collection[str]) -> dict[str, Piece]:
        outputs, kept = tuple(self._graph.outputs), self._cut.forward
        if "R" not in kinds:
            return {"forward": Piece(self._arguments, outputs + kept, self._must_run)}
        return {
            "forward": Piece(self._arguments, outputs, self._must_run),
            "recompute": Piece(self._arguments, kept),
        }

    def _backward_pieces(self, kinds: Collection[str]) -> dict[str, Piece]:
        cut, given, handed_in = self._cut, tuple(self._given), tuple(self._handed_in.values())
        of_inputs, of_weights = tuple(self._of_inputs.values()), _components(self._of_weights)
        made_here = {tensor.ref() for tensor in (*cut.backward, *given)}
        if "W" not in kinds:
            kept = {t.ref(): t for t in (*cut.for_backward, *cut.for_weights)}
            feeds = tuple(tensor for key, tensor in kept.items() if key not in made_here)
            feeds += given + handed_in
            return {"backward": Piece(feeds, of_inputs + of_weights, self._summing)}
        kept_only = tuple(t for t in cut.for_backward if t.ref() not in made_here)
        return {
            "backward": Piece(kept_only + given + handed_in, of_inputs + cut.backward),
            "weights": Piece(cut.for_weights + handed_in, of_weights, self._summing),
        }

    def _named(self, tensors: Sequence[tf.Tensor]) -> StageOutputs:
        structure = self._trace.function.structured_outputs
        structured = tf.nest.pack_sequence_as(structure, list(tensors), expand_composites=True)
        return named_outputs(structured, self._trace.notes)

    def _in_form(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        """Puts the gradients of the weights back into their forms."""
        remaining = iter(tensors)
        gradients: list[Any] = []
        for weight, gradient in zip(self._weights, self._of_weights):
            if isinstance(gradient, tf.IndexedSlices):
                values, indices = next(remaining), next(remaining)
                gradients.append(tf.IndexedSlices(values, indices, tf.constant([*weight.shape])))
            else:
                gradients.append(None if gradient is None else next(remaining))
        return gradients

    def _differentiate(self, made: Collection[int]) -> None:
        """Adds the gradients to the traced graph."""
        outputs = self._named(self._graph.outputs)
        leaves = float_leaves(self._stage.outputs, outputs.values)
        wanted = [leaves[leaf] for leaf in leaves if leaf in self.cotangents]
        self._targets = targets = [*outputs.losses, *wanted]
        inputs = self._input_leaves(made)
        sources = [*inputs.values(), *self._weight_sources()]
        there = [source for source in sources if source is not None]
        with self._building("gradients"):
            self._given = [_placeholder(target) for target in targets]
            found = [None] * len(there)
            if targets and there:
                found = tf.gradients(targets, there, grad_ys=self._given)
            remaining = iter(found)
            gradients = [None if source is None else next(remaining) for source in sources]
            self._of_inputs = {
                leaf: tf.convert_to_tensor(g) for leaf, g in zip(inputs, gradients) if g is not None
            }
            self._of_weights = gradients[len(inputs) :]

    def _sum_up(self, sums: GradientVariables | None) -> tuple[tf.Operation, ...]:
        """Adds the ops that sum dense gradients up; those are not returned any more."""
        if sums is None:
            return ()
        ops: list[tf.Operation] = []
        with self._building("sums"):
            for index, (weight, gradient) in enumerate(zip(self._weights, self._of_weights)):
                if gradient is not None and not isinstance(gradient, tf.IndexedSlices):
                    ops.append(sums.add(weight, gradient))
                    self._of_weights[index] = None
        return tuple(ops)

    @contextlib.contextmanager
    def _building(self, name: str) -> Iterator[None]:
        scope = f"stage_{self._stage.index}/{name}"
        with self._graph.as_default(), tf.device(self._stage.device), tf.name_scope(scope):
            yield

    def _input_leaves(self, made: Collection[int]) -> dict[Leaf, tf.Tensor]:
        """The inputs that come from other stages."""
        values, _ = self._argument_values()
        leaves = float_leaves(self._stage.inputs, values)
        return {leaf: tensor for leaf, tensor in leaves.items() if leaf[0] in made}

    def _weight_sources(self) -> list[tf.Tensor | None]:
        """What stands for each weight in the graph: `None` for one that is not read."""
        captured = {id(outer): inner for outer, inner in self._graph.captures}
        return [self._handed_in.get(id(v), captured.get(id(v.value.handle))) for v in self._weights]

    def _argument_values(self) -> tuple[list[Value], list[tf.Tensor]]:
        """The values and the further tensors that the stage was traced with."""
        signature, layout = self._trace.function.structured_input_signature, self._trace.layout
        tensors = tf.nest.pack_sequence_as(
            list(signature[0]), list(self._arguments), expand_composites=True
        )
        num_flat = sum(layout.is_tensor) + sum(layout.is_masked)
        return layout.unpack(tensors[:num_flat]), tensors[num_flat:]


def _by_reference(graph_tensors: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> Kept:
    return {of_graph.ref(): tensor for of_graph, tensor in zip(graph_tensors, tensors)}


def _timed(
    function: Any, feeds: Sequence[tf.Tensor], device: str, num_rounds: int
) -> tuple[list[tf.Tensor], float]:
    """Runs a function outside of any step; returns what it returns, and seconds."""

    @tf.function(autograph=False)
    def alone(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return function(tensors)[0]

    with tf.device(device):
        results = alone(*feeds)
        taken = []
        for _ in range(num_rounds):
            began = time.perf_counter()
            alone(*feeds)
            tf.test.experimental.sync_devices()
            taken.append(time.perf_counter() - began)
    return results, statistics.median(taken)


def _num_bytes(tensors: Sequence[tf.Tensor]) -> int:
    """Bytes of tensors, each piece of memory once: a reshaped tensor is no second one.

    What loops keep for their gradients is in lists that nobody can look into, and not counted.
    """
    countable = [tensor for tensor in tensors if tensor.dtype.is_numpy_compatible]
    arrays = [np.asarray(tensor.numpy()) for tensor in countable]
    return sum({array.ctypes.data: array.nbytes for array in arrays}.values())


def _placeholder(tensor: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)


def _components(gradients: Sequence[Any]) -> tuple[tf.Tensor, ...]:
    """The tensors that make up gradients, sparse ones among them."""
    tensors: list[tf.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            tensors += [gradient.values, gradient.indices]
        elif gradient is not None:
            tensors.append(gradient)
    return tuple(tensors)
