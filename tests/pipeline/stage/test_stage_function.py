"""A stage as a pure function: what layers assign, mask and add comes out as values."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from simulated import DEVICES

from keras_mgpu.blueprint import partition
from keras_mgpu.internals.keras_masks import get_mask
from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_costs import layer_costs
from keras_mgpu.model.stages import make_stages
from keras_mgpu.pipeline.stage.eager_stage import EagerStage
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageInputs
from keras_mgpu.pipeline.stage.traced_stage import TracedStage
from keras_mgpu.pipeline.stage.training_stage import StepsAhead

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


class CurrentState:
    """State as the variables have it now."""

    def read(self, variable):
        return tf.convert_to_tensor(variable.value)


def stages_of(model, num_stages=1):
    calls = layer_calls.from_model(model)
    plan = partition.balance(layer_costs(calls), num_stages)
    return make_stages(calls, plan, DEVICES[:1] * num_stages)


def one_stage(*middle):
    return keras.Sequential([keras.Input((3,)), *middle])


def inputs_of(function, x=X):
    handed_in = [tf.convert_to_tensor(v.value) for v in function.handed_in]
    return StageInputs([tf.constant(x)], handed_in, CurrentState())


@pytest.mark.parametrize("eager", [True, False])
def test_nothing_is_assigned(eager):
    model = one_stage(layers.BatchNormalization(), layers.Dropout(0.5))
    function = StageFunction(stages_of(model)[0], training=True, eager=eager)
    before = [variable.numpy() for variable in model.variables]
    outputs = function(inputs_of(function))
    norm = model.layers[0]
    assert norm.moving_mean in outputs.state
    assert not np.allclose(outputs.state[norm.moving_mean], before[2])
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("eager", [True, False])
def test_a_seed_that_no_layer_owns_is_found(eager):
    class Noise(layers.Layer):
        def call(self, inputs):
            return inputs + keras.random.normal(keras.ops.shape(inputs))

    keras.utils.set_random_seed(1)
    function = StageFunction(stages_of(one_stage(Noise()))[0], training=True, eager=eager)
    first = function(inputs_of(function))
    (seed,) = first.state
    again = function(inputs_of(function))
    np.testing.assert_array_equal(first.values[0], again.values[0])  # The seed has not moved.
    seed.assign(first.state[seed])
    assert not np.allclose(function(inputs_of(function)).values[0], first.values[0])


def test_masks_cross_the_border_of_a_traced_stage():
    model = one_stage(layers.Reshape((3, 1)), layers.Masking(0.0))
    function = StageFunction(stages_of(model)[0], training=False)
    x = np.array([[1.0, 0.0, 2.0]], "float32")
    (value,) = function(inputs_of(function, x)).values
    np.testing.assert_array_equal(get_mask(value), [[True, False, True]])


def test_valid_places_are_counted_where_a_norm_sees_a_mask():
    model = one_stage(layers.Reshape((3, 1)), layers.Masking(0.0), layers.BatchNormalization())
    function = StageFunction(stages_of(model)[0], training=True)
    x = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]], "float32")
    outputs = function(inputs_of(function, x))
    assert float(outputs.valid[model.layers[-1]]) == 3


def test_each_added_loss_knows_its_call():
    class Adds(layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.sum(inputs))
            self.add_loss(keras.ops.mean(inputs))
            return inputs

    function = StageFunction(stages_of(one_stage(Adds(name="adds")))[0], training=True)
    outputs = function(inputs_of(function))
    np.testing.assert_allclose(outputs.losses, [X.sum(), X.mean()], rtol=1e-5)
    assert [(each.call.name, each.place) for each in outputs.loss_calls] == [
        ("adds", 0),
        ("adds", 1),
    ]


def test_one_trace_serves_every_number_of_samples():
    function = StageFunction(stages_of(one_stage(layers.Dense(2)))[0], training=True)
    traces = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, 3), tf.float32)])
    def step(x):
        halves = [StageInputs([part], [], CurrentState()) for part in (x[:1], x[1:])]
        traces.extend(function.trace(each)[0] for each in halves)
        return [function(each).values[0] for each in halves]

    assert [part.shape[0] for part in step(tf.constant(X))] == [1, 3]
    assert traces[0] is traces[1]


def test_a_weight_of_another_stage_cannot_be_read_unseen():
    first = layers.Dense(3, name="first")

    class Thief(layers.Layer):
        def call(self, inputs):
            return inputs @ first.kernel

    model = keras.Sequential([keras.Input((3,)), first, Thief(name="thief")])
    stages = stages_of(model, 2)
    weights = model.trainable_weights
    function = StageFunction(stages[1], training=True, foreign=weights)
    with pytest.raises(ValueError, match="reads the weight 'sequential/first/kernel'"):
        function(inputs_of(function))
    StageFunction(stages[1], training=False, foreign=weights)(inputs_of(function))


def test_errors_of_layers_name_the_stage():
    class Breaks(layers.Layer):
        is_broken = False

        def call(self, inputs):
            if self.is_broken:
                raise ValueError("what the layer says")
            return inputs

    model = one_stage(Breaks(name="breaks"))
    model.layers[0].is_broken = True
    function = StageFunction(stages_of(model)[0], training=True)
    with pytest.raises(
        ValueError,
        match=rf"(?s)In stage 0 \(breaks\) on {DEVICES[0]}, layer 'breaks': .*layer says",
    ):
        function(inputs_of(function))


def gradients_of(stage, function, recompute, split_weights):
    """The gradients of a stage's output and weights, for a loss that is the sum of outputs."""
    stage.begin()
    run = stage.forward(inputs_of(function))
    if recompute:
        run.recompute()
    leaf = (function.stage.outputs[0], 0)
    found = run.backward({leaf: tf.ones_like(run.outputs.values[0])}, [])
    if split_weights:
        run.weight_gradients()
    return [*found.of_inputs.values(), *stage.gradients()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split_weights", [False, True])
def test_eager_and_traced_stages_find_the_same_gradients(recompute, split_weights):
    model = one_stage(layers.Dense(4, activation="tanh"), layers.Dropout(0.5, seed=3))
    (stage,) = stages_of(model)
    weights, made = model.trainable_weights, {*stage.inputs, *stage.outputs}
    leaf = (stage.outputs[0], 0)
    kinds = "F" + "R" * recompute + "B" + "W" * split_weights
    eager = StageFunction(stage, training=True, eager=True)
    expected = gradients_of(
        EagerStage(eager, weights, made, kinds), eager, recompute, split_weights
    )

    traced = StageFunction(stage, training=True)
    trains = TracedStage(traced, weights, made, kinds, num_micro_batches=2, stays_a_call=True)

    @tf.function(autograph=False)
    def step():
        with tf.init_scope():
            trains.prepare(StepsAhead(inputs_of(traced), [leaf]))
        return gradients_of(trains, traced, recompute, split_weights)

    for found, wanted in zip(step(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
