"""Turns a model and a plan into stages: their calls, the values between them, their variables.

No layer is copied. A stage is a range of the calls of the model, and placing it on a device moves
the variables of the user's layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_mgpu.blueprint.partition import PartitionPlan
from keras_mgpu.internals.identity import IdentitySet, unique
from keras_mgpu.internals.keras_graph import flatten_layers
from keras_mgpu.internals.keras_variables import own_state, own_trainable, own_weights
from keras_mgpu.model.layer_calls import LayerCall, LayerCalls
from keras_mgpu.model.memory_errors import SMALLER_STAGES
from keras_mgpu.model.placing import Load

WEIGHTS_HELP = (
    f"{SMALLER_STAGES}. A smaller batch and `recompute` do not help: weights are always there"
)


@dataclass(frozen=True, eq=False)
class Stage:
    """A range of a model's calls, pinned to a device.

    Attributes:
        index: Its position in the pipeline, starting at 0.
        device: The device string that its ops and variables are pinned to.
        calls: Its layer calls, in order.
        inputs: The numbers of the values it reads, from the data or from any earlier stage.
        outputs: The numbers of the values it produces for later stages, or as model outputs.
        variables: The variables on its device.
        borrowed: The variables that its layers use, but that belong to an earlier stage.
    """

    index: int
    device: str
    calls: tuple[LayerCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: tuple[keras.Variable, ...]
    borrowed: tuple[keras.Variable, ...]

    @property
    def layers(self) -> list[Any]:
        """Its layers, in the order of their first call."""
        return unique(call.layer for call in self.calls if not call.is_entry)

    @property
    def sublayers(self) -> list[keras.Layer]:
        """Its layers, and all layers inside them."""
        return [sublayer for layer in self.layers for sublayer in flatten_layers(layer)]

    @property
    def state(self) -> list[keras.Variable]:
        """The variables that its layers may update when called: statistics, seeds, metrics."""
        return unique(variable for layer in self.sublayers for variable in own_state(layer))

    @property
    def new_weights(self) -> list[keras.Variable]:
        """The weights that were added to its layers after the model was split."""
        known = IdentitySet((*self.variables, *self.borrowed))
        weights = [weight for layer in self.sublayers for weight in own_weights(layer)]
        return [weight for weight in weights if weight not in known]

    @property
    def tables(self) -> list[keras.Variable]:
        """The embedding tables on its device."""
        embeddings = [each for each in self.sublayers if isinstance(each, keras.layers.Embedding)]
        of_embeddings = IdentitySet(v for layer in embeddings for v in layer.variables)
        return [variable for variable in self.variables if variable in of_embeddings]

    @property
    def name(self) -> str:
        """Such as `"stage 1 (dense … dense_3)"`."""
        names = [call.name for call in self.calls if not call.is_entry]
        return f"stage {self.index} ({' … '.join(dict.fromkeys((*names[:1], *names[-1:])))})"

    def __str__(self) -> str:
        return f"{self.name} on {self.device}"


def make_stages(
    model: LayerCalls, plan: PartitionPlan, devices: Sequence[str]
) -> tuple[Stage, ...]:
    """Divides the calls of a model into stages as planned, one per device."""
    ranges = _ranges(model.calls, plan.ends)
    stages: list[Stage] = []
    homes: IdentitySet[keras.Variable] = IdentitySet()
    for index, (calls, device) in enumerate(zip(ranges, devices)):
        later = [call for following in ranges[index + 1 :] for call in following]
        used = _variables(calls)
        stages.append(
            Stage(
                index=index,
                device=device,
                calls=calls,
                inputs=_read_by(calls),
                outputs=_needed_after(calls, later, model.outputs),
                variables=tuple(v for v in used if v not in homes),
                borrowed=tuple(v for v in used if v in homes),
            )
        )
        homes.update(used)
    return tuple(stages)


def weight_loads(stages: Iterable[Stage]) -> list[Load]:
    """The variables of stages, to be placed on their devices."""
    return [
        Load(f"the weights of {stage.name}", stage.device, stage.variables, WEIGHTS_HELP)
        for stage in stages
    ]


def _ranges(calls: Sequence[LayerCall], ends: Sequence[int]) -> list[tuple[LayerCall, ...]]:
    """Divides the calls at the ends given by the plan, which does not count entries."""
    ranges: list[list[LayerCall]] = [[] for _ in ends]
    stage, counted = 0, 0
    for call in calls:
        if not call.is_entry and counted == ends[stage]:
            stage += 1
        if call.is_entry and counted == ends[stage]:
            ranges[stage + 1].append(call)
            continue
        ranges[stage].append(call)
        counted += 0 if call.is_entry else 1
    return [tuple(each) for each in ranges]


def _read_by(calls: Sequence[LayerCall]) -> tuple[int, ...]:
    made: set[int] = set()
    read: dict[int, None] = {}
    for call in calls:
        read.update((value, None) for value in call.inputs if value not in made)
        made.update(call.outputs)
    return tuple(read)


def _needed_after(
    calls: Sequence[LayerCall], later: Sequence[LayerCall], model_outputs: Sequence[int]
) -> tuple[int, ...]:
    needed = {value for call in later for value in call.inputs} | set(model_outputs)
    return tuple(value for call in calls for value in call.outputs if value in needed)


def _variables(calls: Sequence[LayerCall]) -> list[keras.Variable]:
    layers = [call.layer for call in calls if not call.is_entry]
    sublayers = [sublayer for layer in layers for sublayer in flatten_layers(layer)]
    return unique(v for each in sublayers for v in (*own_trainable(each), *own_state(each)))
