"""Stages: which calls, which values between them, which variables where."""

import keras
from keras import layers
from simulated import DEVICES

from keras_mgpu.blueprint import partition
from keras_mgpu.model import layer_calls, stages
from keras_mgpu.model.layer_costs import layer_costs

TWO = DEVICES[1:3]


def stages_of(model, cuts, devices=TWO):
    calls = layer_calls.from_model(model)
    return stages.make_stages(calls, partition.cut_after(layer_costs(calls), cuts), devices)


def skip():
    inputs = keras.Input((4,))
    first = layers.Dense(4, name="first")(inputs)
    second = layers.Dense(4, name="second")(first)
    return keras.Model(inputs, layers.Add(name="sum")([first, second]))


def tied():
    inputs, shared = keras.Input((4,)), layers.Dense(4, name="shared")
    return keras.Model(inputs, shared(layers.Dense(4, name="middle")(shared(inputs))))


def test_a_value_goes_to_the_stages_that_read_it():
    first, second, last = stages_of(skip(), ["first", "second"], DEVICES[:3])
    assert second.inputs == first.outputs
    assert last.inputs == (*first.outputs, *second.outputs)
    assert str(first) == f"stage 0 (first) on {DEVICES[0]}"


def test_a_shared_weight_lives_with_the_first_who_uses_it():
    first, second = stages_of(tied(), ["middle"])
    assert [variable.name for variable in second.borrowed] == ["kernel", "bias"]
    assert second.variables == ()
    for borrowed, own in zip(second.borrowed, first.variables):
        assert borrowed is own


def test_statistics_and_seeds_are_state_of_their_stage():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="dropout"),
        ]
    )
    first, second = stages_of(model, ["norm"])
    assert [v.name for v in first.state] == ["moving_mean", "moving_variance"]
    assert [v.name for v in second.state] == ["seed_generator_state"]


def test_weights_that_came_later_are_noticed():
    model = skip()
    first, second = stages_of(model, ["first"])
    model.get_layer("second").enable_lora(1)
    assert first.new_weights == []
    assert [v.name for v in second.new_weights] == ["lora_kernel_a", "lora_kernel_b"]


def test_tables_are_those_of_embeddings():
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Embedding(10, 4, name="table")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="dense")(x))
    first, second = stages_of(model, ["table"])
    assert [v.name for v in first.tables] == ["embeddings"]
    assert second.tables == []
