"""Bad input gets one clear error before anything is moved."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from simulated import DEVICES

from keras_mgpu import PipelineSplit, plan
from keras_mgpu.system.devices import normalize

X, Y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")


def make():
    with tf.device(DEVICES[3]):
        return keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(5, name="first"),
                layers.Dense(5, name="second"),
                layers.Dense(2, name="third"),
            ]
        )


class OwnTrainStep(keras.Model):
    def train_step(self, data):
        return {}


class OwnComputeLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.sum(y_pred)


class OwnCall(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def functional(kind):
    inputs = keras.Input((4,))
    return kind(inputs, layers.Dense(2)(layers.Dense(3)(inputs)))


def subclassed():
    model = Subclassed()
    model(X)
    return model


TWO = DEVICES[:2]

BAD = {
    "unknown cut": ({"cuts": ["secnod"]}, ValueError, r"Did you mean 'second'\?"),
    "duplicate cut": ({"cuts": ["first", "first"]}, ValueError, "both cut after 'first'"),
    "cut after the last layer": ({"cuts": ["third"]}, ValueError, "last layer"),
    "cut that is no list": ({"cuts": "first"}, TypeError, "list"),
    "more stages than layers": (
        {"devices": DEVICES[:1] * 4},
        ValueError,
        "only 3 layers.*num_stages=4",
    ),
    "micro_batches of 0": ({"micro_batches": 0}, ValueError, "at least 1.*micro_batches=0"),
    "micro_batches as text": ({"micro_batches": "8"}, TypeError, "integer.*micro_batches='8'"),
    "micro_batches as bool": ({"micro_batches": True}, TypeError, "micro_batches=True"),
    "unknown schedule": ({"schedule": "1b1f"}, ValueError, "'gpipe', '1f1b'.*'1b1f'"),
    "unknown batch_norm": ({"batch_norm": "sync"}, ValueError, "'deferred', 'micro_batch'"),
    "devices not matching cuts": (
        {"cuts": ["first", "second"]},
        ValueError,
        r"one entry per stage.*3 stage\(s\).*2 device",
    ),
    "no devices": ({"devices": []}, ValueError, "at least one device"),
    "devices as text": ({"devices": DEVICES[0]}, TypeError, "list of device strings"),
    "a device that is none": ({"devices": [DEVICES[0], "fast"]}, ValueError, "'fast'"),
    "a device that is not there": (
        {"devices": [DEVICES[0], "/GPU:7"]},
        ValueError,
        r"No such device: /GPU:7\. Available devices: /CPU:0.*logical_devices\(n\)",
    ),
    "a name that Keras does not take": ({"name": "a/b"}, ValueError, "`name`.*a/b"),
    "no GPU to choose": ({"devices": None}, ValueError, r"no GPU.*logical_devices"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_options_move_nothing(what):
    options, kind, message = BAD[what]
    model = make()
    with pytest.raises(kind, match=message):
        PipelineSplit(model, **{"devices": TWO, **options})
    assert {normalize(v.value.device) for v in model.variables} == {DEVICES[3]}


BAD_MODELS = {
    "no model": (lambda: 5, TypeError, "cannot be split.*Received: model=5"),
    "subclassed": (subclassed, ValueError, "subclassed model.*list of layers or models"),
    "not built": (lambda: keras.Sequential([layers.Dense(2)]), ValueError, r"model\.build\("),
    "own train_step": (lambda: functional(OwnTrainStep), ValueError, "`train_step`"),
    "own compute_loss": (lambda: functional(OwnComputeLoss), ValueError, "`compute_loss`"),
    "own call": (
        lambda: OwnCall([keras.Input((4,)), layers.Dense(2)]),
        ValueError,
        "overrides `call`",
    ),
    "empty list": (list, ValueError, "at least one layer"),
    "list of functions": (lambda: [len, len], TypeError, "Keras layer or model"),
    "list of unbuilt layers": (
        lambda: [layers.Dense(2), layers.Dense(2)],
        ValueError,
        "not built.*for stage in stages",
    ),
}


@pytest.mark.parametrize("what", BAD_MODELS)
def test_bad_models(what):
    build, kind, message = BAD_MODELS[what]
    with pytest.raises(kind, match=message):
        PipelineSplit(build(), devices=TWO)


def test_a_plan_takes_the_same_models():
    with pytest.raises(ValueError, match="subclassed model"):
        plan(subclassed(), 2)


def test_splitting_a_split():
    split = PipelineSplit(make(), TWO)
    with pytest.raises(ValueError, match="PipelineSplit already"):
        PipelineSplit(split, TWO)
    with pytest.raises(
        ValueError, match=f"already split, by 'sequential_split' over {', '.join(TWO)}"
    ):
        PipelineSplit(split.model, TWO)


def test_a_model_can_be_split_anew_once_the_wrapper_is_gone():
    model = make()
    split = PipelineSplit(model, TWO)
    del split
    PipelineSplit(model, DEVICES[2:3])
    assert {normalize(v.value.device) for v in model.variables} == {DEVICES[2]}


def test_a_plan_of_another_model(devices):
    other = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="a"), layers.Dense(2)])
    with pytest.raises(ValueError, match="'a'"):
        PipelineSplit(make(), TWO, cuts=plan(other, 2))


def test_weights_that_a_model_gets_after_it_was_split(devices):
    """Adapters, for example: no stage would train them."""
    model = make()
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("sgd", "mse")
    layer = model.get_layer("first")
    layer.enable_lora(2)
    with pytest.raises(ValueError, match=r"Split it again.*lora_kernel_a"):
        split.compile("sgd", "mse")
    del split
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("sgd", "mse")
    split.fit(X, Y, verbose=0)
    assert np.any(layer.lora_kernel_b.numpy() != 0)  # Where it begins.


def test_inside_a_strategy():
    strategy = tf.distribute.MirroredStrategy(TWO)
    with strategy.scope():
        with pytest.raises(ValueError, match=r"inside the scope of a `tf\.distribute` strategy"):
            PipelineSplit(make(), TWO)
        model = make()
    with pytest.raises(ValueError, match=r"created inside.*MirroredStrategy"):
        PipelineSplit(model, TWO)


def test_training_without_compile():
    split = PipelineSplit(make(), TWO)
    with pytest.raises(ValueError, match="compile"):
        split.fit(X, Y)
    with pytest.raises(ValueError, match="compile"):
        split.verify(X, Y)


class Fails(layers.Layer):
    """Raises while it is traced, while it runs, or for want of memory."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how

    def call(self, inputs):
        if isinstance(inputs, keras.KerasTensor):
            return inputs
        if self.how == "trace":
            raise ValueError("something is odd")
        if self.how == "run":
            return inputs + tf.cast(tf.debugging.check_numerics(inputs / 0.0, "bad"), inputs.dtype)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    def compute_output_shape(self, input_shape):
        return input_shape


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        (
            "trace",
            ValueError,
            rf"(?s)In stage 1 \(fails … dense_1\) on {DEVICES[1]}, layer 'fails': .*is odd",
        ),
        ("run", tf.errors.InvalidArgumentError, rf"In stage 1 \(fails … dense_1\) on {DEVICES[1]}"),
        (
            "memory",
            tf.errors.ResourceExhaustedError,
            r"Out of memory in stage 1 \(fails … dense_1\).*micro_batches.*",
        ),
    ],
)
def test_an_error_inside_a_stage_names_it(how, kind, message):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), Fails(how), layers.Dense(2)])
    split = PipelineSplit(model, DEVICES[:2], micro_batches=2, cuts=["dense"])
    split.compile("sgd", "mse")
    with pytest.raises(kind, match=message):
        split.fit(X, Y, verbose=0)


def test_another_backend(monkeypatch):
    model = make()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"TensorFlow backend.*KERAS_BACKEND=tensorflow.*'jax'"):
        PipelineSplit(model, TWO)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": ["0F0 0B0", "1B0 1F0"]}, "can never finish"),
        ({"schedule": ["0F0 0B0 0B0", "1F0 1B0"]}, "repeats ops"),
        ({"schedule": ["0F0", "1F0"]}, "no backward ops"),
        ({"schedule": ["0F0 0X0", "1F0 1B0"]}, "An op must consist of"),
        ({"schedule": [["0F0", 3]]}, "An op must consist of"),
        ({"schedule": [3]}, "A lane must contain the ops of one device"),
        ({"schedule": []}, "at least one op"),
        ({"schedule": ["0F0 0B0"]}, "as many entries, one per stage"),
        ({"schedule": ["0F0 1F0 1B0 0B0"]}, "on the same device"),
        ({"schedule": ["0F0 0B0", "1F0 1B0"], "micro_batches": 2}, "Remove `micro_batches`"),
        ({"schedule": 3}, "`schedule` must be a name"),
        ({"schedule": "1F1B"}, "`schedule` must be one of"),
        ({"stages_per_device": 0}, "`stages_per_device` must be"),
        ({"stages_per_device": 1.5}, "`stages_per_device` must be"),
        ({"jit_compile": "auto"}, "`jit_compile` must be"),
    ],
)
def test_schedules_and_options_that_cannot_be(options, says):
    model = make()
    before = [v.value.device for v in model.weights]
    with pytest.raises((ValueError, TypeError), match=says):
        PipelineSplit(model, TWO, **options)
    assert [v.value.device for v in model.weights] == before


def test_interleaved_devices_come_round_by_round():
    first, second = TWO
    with pytest.raises(ValueError, match="round by round"):
        PipelineSplit(make(), [first, first, second, second], schedule="interleaved")
    with pytest.raises(ValueError, match="more than once"):
        PipelineSplit(make(), [first, second, first], stages_per_device=2)


def test_stages_cannot_be_measured_before_they_are_traced():
    split = PipelineSplit(make(), TWO)
    split.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Call `fit` first"):
        split.measure(4)
