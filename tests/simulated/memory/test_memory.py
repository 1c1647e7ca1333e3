"""A device that is too small: what users read, and that nothing has changed for them."""

import contextlib
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu import PipelineSplit, restore_checkpoint, save_checkpoint
from keras_mgpu.model import placing
from keras_mgpu.profiling import measured_timeline
from keras_mgpu.system import memory
from keras_mgpu.system.memory import memory_of

KIB, MIB, WIDTH = 1 << 10, 1 << 20, 256
KERNEL = WIDTH * WIDTH * 4  # The bytes of one layer's kernel.
SMALL = 8 * KIB  # Biases, and what TensorFlow adds to round sizes up.
# TensorFlow computes on the first GPU where it is not told otherwise. The filled ones are the last:
# what it has taken from a device it keeps, and other tests find it there.
DEFAULT, THIRD, FIRST, SECOND = "/GPU:0", "/GPU:1", "/GPU:2", "/GPU:3"
TWO, THREE = [FIRST, SECOND], [FIRST, SECOND, THIRD]
X = np.random.default_rng(0).normal(size=(16, WIDTH)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 1)).astype("float32")


def make(device="/CPU:0"):
    """Five layers of one size and a small one; the last three of them make up stage 1."""
    keras.utils.set_random_seed(0)
    with tf.device(device):
        hidden = [layers.Dense(WIDTH, "tanh", name=f"hidden_{i}") for i in range(5)]
        return keras.Sequential(
            [keras.Input((WIDTH,)), *hidden, layers.Dense(1, name="last")], name="model"
        )


def split_of(model, devices=TWO):
    cuts = {2: ["hidden_1"], 3: ["hidden_1", "hidden_3"]}[len(devices)]
    return PipelineSplit(model, devices, micro_batches=2, cuts=cuts)


def in_use(device):
    gc.collect()
    return memory_of(device).used


@contextlib.contextmanager
def room(device, *num_bytes):
    """Leaves so many bytes free on a device; in pieces, if there are several numbers.

    Tensors fill all the rest, until the end.
    """
    gc.collect()
    with tf.device(device):
        filling, pieces = [], []
        for size in num_bytes:
            pieces.append(exactly(size, device, filling))
            filling.append(empty(KIB))  # Keeps it from the next one.
        filling.append(empty(memory_of(device).free - 64 * MIB))  # Takes the largest free piece.
        while memory_of(device).free > 64 * KIB:
            filling.append(empty(4 * KIB))
    del pieces
    yield
    del filling


def exactly(num_bytes, device, filling):
    """A tensor in a piece of memory of just its size; larger pieces become filling."""
    while True:
        used = memory_of(device).used
        tensor = empty(num_bytes)
        if memory_of(device).used - used < num_bytes + KIB:
            return tensor
        filling.append(tensor)


def empty(num_bytes):
    return tf.raw_ops.Empty(shape=[int(num_bytes) // 4], dtype=tf.float32)


def places(variables):
    return [variable.value.device for variable in variables]


def trained_plainly(optimizer):
    model = make(FIRST)
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    return model


def assert_trains(split, optimizer="sgd"):
    """It trains to the numbers of plain Keras."""
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    expected = trained_plainly(optimizer)
    for value, reference in zip(split.model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5)


# Weights.


@pytest.mark.parametrize("source", ["/CPU:0", FIRST])
def test_weights_need_no_more_memory_than_their_size(source):
    model = make(source)
    before = model.get_weights()
    num_bytes = 3 * KERNEL + SMALL
    with room(SECOND, 1.02 * num_bytes):
        split = split_of(model)
    assert {v.value.device[-5:] for v in split.stages[1].variables} == {"GPU:3"}
    for value, reference in zip(model.get_weights(), before):
        np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("source", ["/CPU:0", DEFAULT])
def test_other_devices_hold_nothing_while_weights_pass(source):
    before = in_use(DEFAULT)
    model = make(source)
    tf.config.experimental.reset_memory_stats(DEFAULT)
    with_model = in_use(DEFAULT)
    split_of(model)
    assert tf.config.experimental.get_memory_info(DEFAULT)["peak"] <= with_model + SMALL
    assert in_use(DEFAULT) <= before + SMALL


def test_a_table_that_was_written_to_in_rows_is_not_copied_for_the_move():
    with tf.device(FIRST):
        table = keras.Variable(np.zeros((1024, 64), "float32"))
    table.value.scatter_update(tf.IndexedSlices(tf.ones((1, 64)), tf.constant([3])))
    num_bytes = in_use(FIRST)
    tf.config.experimental.reset_memory_stats(FIRST)
    placing.place([placing.Load("a table", SECOND, [table], "")])
    assert tf.config.experimental.get_memory_info(FIRST)["peak"] <= num_bytes
    assert table.numpy().sum() == 64
    assert in_use(FIRST) <= num_bytes - 1024 * 64 * 4


@pytest.mark.parametrize("source", ["/CPU:0", FIRST])
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "int32", "int64", "uint32", "bool"]
)
def test_variables_of_any_type_move(source, dtype):
    for shape in [(), (3,), (512, 64)]:
        with tf.device(source):
            variable = keras.Variable(np.ones(shape), dtype=dtype, trainable=False)
        placing.place([placing.Load("a variable", SECOND, [variable], "")])
        assert variable.dtype == dtype
        assert np.all(np.asarray(variable.numpy(), "float32") == 1)
        # TensorFlow keeps int32 in host memory, on every device.
        assert variable.value.device.endswith("CPU:0" if dtype == "int32" else "GPU:3")


def test_weights_that_do_not_fit():
    model = make()
    before, used = places(model.variables), in_use(SECOND)
    with room(SECOND, 2 * KERNEL):
        filled = in_use(SECOND)
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            split_of(model)
        assert in_use(SECOND) == filled
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "Out of memory while placing the weights of stage 1 (hidden_2 … last) on /GPU:3."
    )
    assert lines[1].startswith("To be stored: 772.0 KiB in 8 variables. The largest is model/h")
    assert lines[2].startswith("In use there: 2.0 GiB of 2.0 GiB")
    assert "one more device" in lines[3]
    assert "`cuts`" in lines[3]
    assert places(model.variables) == before
    assert in_use(SECOND) == used
    split = split_of(model, THREE)
    split.compile("sgd", "mse")
    assert_trains(split)


@pytest.mark.parametrize("source", ["/CPU:0", FIRST])
def test_weights_that_fit_only_in_pieces_of_another_size(source):
    """TensorFlow itself has to find out that there is no room."""
    model = make(source)
    before, used = places(model.variables), in_use(SECOND)
    elsewhere = in_use(FIRST)
    with room(SECOND, *[0.45 * KERNEL] * 12):
        filled = in_use(SECOND)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="in pieces") as caught:
            PipelineSplit(model, TWO, micro_batches=2, cuts=["hidden_0"])
        assert in_use(SECOND) == filled
    message = str(caught.value)
    assert message.startswith("Out of memory while placing the weights of stage 1")
    assert "No room for model/hidden_" in message
    assert places(model.variables) == before
    assert (in_use(FIRST), in_use(SECOND)) == (elsewhere, used)
    split = split_of(model, THREE)
    split.compile("sgd", "mse")
    assert_trains(split)


def test_another_error_while_weights_are_placed(monkeypatch):
    model = make()
    before, used = places(model.variables), in_use(SECOND)
    copy_to = placing.copy_to
    copied = []

    def copy_some(variable, *arguments):
        if len(copied) == 7:
            raise KeyboardInterrupt
        copied.append(variable)
        return copy_to(variable, *arguments)

    monkeypatch.setattr(placing, "copy_to", copy_some)
    with pytest.raises(KeyboardInterrupt) as caught:
        split_of(model)
    assert places(model.variables) == before
    assert in_use(SECOND) == used, caught
    monkeypatch.undo()
    split = split_of(model)
    split.compile("sgd", "mse")
    assert_trains(split)


def test_memory_of_a_model_that_was_deleted_is_used():
    """Keras models hold themselves, so that `del` alone does not free anything."""
    used = in_use(SECOND)
    with room(SECOND, 3 * KERNEL + 4 * SMALL):
        split = split_of(make())
        assert in_use(SECOND) > used
        gc.disable()
        try:
            del split
            split_of(make())
        finally:
            gc.enable()


def test_from_full_devices_to_full_devices():
    """With one more device, weights leave the devices to which others come."""
    model = make()
    with room(FIRST, 3 * KERNEL + SMALL), room(SECOND, 3 * KERNEL + SMALL):
        split = split_of(model)
        before = model.get_weights()
        del split
        split = PipelineSplit(model, THREE, micro_batches=2, cuts=["hidden_0", "hidden_3"])
    for value, reference in zip(model.get_weights(), before):
        np.testing.assert_array_equal(value, reference)
    assert [v.value.device[-1] for v in model.variables] == list("223333331111")
    split.compile("sgd", "mse")
    assert_trains(split)


def test_from_full_devices_to_devices_that_are_too_small():
    model = make()
    with room(FIRST, 3 * KERNEL + SMALL), room(SECOND, 3 * KERNEL + SMALL):
        split = split_of(model)
        before, where, used = model.get_weights(), places(model.variables), in_use(SECOND)
        del split
        with pytest.raises(tf.errors.ResourceExhaustedError, match=r"stage 1 .* on /GPU:3"):
            PipelineSplit(model, THREE, micro_batches=2, cuts=["hidden_0", "hidden_4"])
        assert places(model.variables) == where
        assert in_use(SECOND) == used
        for value, reference in zip(model.get_weights(), before):
            np.testing.assert_array_equal(value, reference)


def test_no_value_is_lost_if_a_device_does_not_take_it_back(monkeypatch, caplog):
    def put(variable, value):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    model = make()
    with room(FIRST, 3 * KERNEL + SMALL), room(SECOND, 3 * KERNEL + SMALL):
        split = split_of(model)
        before = model.get_weights()
        del split
        monkeypatch.setattr(memory, "put", put)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            PipelineSplit(model, THREE, micro_batches=2, cuts=["hidden_0", "hidden_4"])
    assert "no room any more for model/hidden_1/kernel: it stays on the host" in caplog.text
    for value, reference in zip(model.get_weights(), before):
        np.testing.assert_array_equal(value, reference)
    split = split_of(model, THREE)
    split.compile("sgd", "mse")
    assert_trains(split)


# Slots.


def test_slots_that_do_not_fit():
    optimizer = keras.optimizers.Adam(name="adam")
    names = set(vars(optimizer))
    with room(SECOND, 8 * KERNEL):
        split = split_of(make())
        split.compile(optimizer, "mse")
        filled = in_use(SECOND)
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            split.fit(X, Y, batch_size=8, verbose=0)
        assert in_use(SECOND) == filled
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "Out of memory while placing the slots of the optimizer adam for "
        "stage 1 (hidden_2 … last) on /GPU:3."
    )
    assert lines[1].startswith("To be stored: 1.5 MiB in 16 variables.")
    assert "SGD" in lines[3]
    assert not optimizer.built
    assert len(optimizer.variables) == 2
    assert set(vars(optimizer)) == names
    assert_trains(split, "adam")


def test_an_optimizer_with_fewer_slots_after_one_with_too_many():
    with room(SECOND, 8 * KERNEL):
        split = split_of(make())
        split.compile("adam", "mse")
        with pytest.raises(tf.errors.ResourceExhaustedError):
            split.fit(X, Y, batch_size=8, verbose=0)
    split.compile("sgd", "mse")
    assert_trains(split)


def test_a_model_with_slots_is_split_with_them_or_not_at_all():
    model = trained_plainly("adam")
    variables = [*model.variables, *model.optimizer.variables]
    before, used = places(variables), in_use(SECOND)
    values = [variable.numpy() for variable in variables]
    with (
        room(SECOND, 7 * KERNEL),
        pytest.raises(
            tf.errors.ResourceExhaustedError, match="slots of the optimizer adam for stage 1"
        ) as caught,
    ):
        split_of(model)
    assert "772.0 KiB are to be stored there as well" in str(caught.value)
    assert places(variables) == before
    assert in_use(SECOND) == used
    split = split_of(model, THREE)
    for variable, value in zip(variables, values):
        np.testing.assert_array_equal(variable.numpy(), value)
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    expected = trained_plainly("adam")
    expected.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for value, reference in zip(model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(value, reference, rtol=1e-3, atol=1e-4)


# What is made for the first step.


def test_sums_of_gradients_that_do_not_fit():
    with room(FIRST, 3.5 * KERNEL):
        split = split_of(make())
        split.compile("sgd", "mse")
        filled = in_use(FIRST), in_use(SECOND)
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            split.fit(X, Y, batch_size=8, verbose=0)
        # What remains are small constants, such as the number of samples.
        assert in_use(FIRST) - filled[0] < KERNEL / 4
        assert in_use(SECOND) - filled[1] < KERNEL / 4
    message = str(caught.value)
    assert "the sums of the gradients of stage 0 (hidden_0 … hidden_1) on /GPU:2." in message
    assert "To be stored: 514.0 KiB in 4 variables." in message
    assert "trainable = False" in message
    assert message.count("Out of memory") == 1
    assert_trains(split)


class Keeps(keras.metrics.Metric):
    """A metric that takes much memory."""

    def __init__(self):
        super().__init__(name="keeps")
        self.kept = self.add_weight(shape=(WIDTH, WIDTH), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.assign_add(tf.fill(self.kept.shape, tf.cast(tf.shape(y_pred)[0], "float32")))

    def result(self):
        return tf.reduce_max(self.kept)


def test_metrics_that_do_not_fit():
    with tf.device("/CPU:0"):
        metric = Keeps()
    with room(SECOND, 3.5 * KERNEL):
        split = split_of(make())
        split.compile("sgd", "mse", metrics=[metric])
        filled = in_use(SECOND)
        with pytest.raises(
            tf.errors.ResourceExhaustedError, match="placing the compiled metrics on /GPU:3"
        ):
            split.evaluate(X, Y, batch_size=8, verbose=0)
        assert in_use(SECOND) - filled <= SMALL
    assert split.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)["keeps"] == 16


# Checkpoints.


def test_a_checkpoint_is_saved_and_restored_without_a_second_copy_on_the_device(tmp_path):
    split = split_of(make())
    split.compile("adam", "mse")
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    saved = [variable.numpy() for variable in split.model.variables]
    path = save_checkpoint(tmp_path, split)
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    used = in_use(SECOND)
    tf.config.experimental.reset_memory_stats(SECOND)
    save_checkpoint(tmp_path, split)
    assert tf.config.experimental.get_memory_info(SECOND)["peak"] <= used + SMALL
    with room(FIRST, SMALL), room(SECOND, SMALL):
        restore_checkpoint(path, split)
    for variable, value in zip(split.model.variables, saved):
        np.testing.assert_array_equal(variable.numpy(), value)
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    expected = trained_plainly("adam")
    expected.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for value, reference in zip(split.model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(value, reference, rtol=1e-3, atol=1e-4)


def test_a_checkpoint_in_host_memory_takes_nothing_on_a_device(tmp_path):
    """TensorFlow keeps what it copied to a device as long as the tensor it copied."""
    from keras_mgpu.checkpoints import host_copies

    with tf.device(SECOND):
        variable = keras.Variable(np.zeros((WIDTH, WIDTH), "float32"))
    saved = host_copies.to_host({"a": variable})
    used = in_use(SECOND)
    host_copies.assign({"a": variable}, saved)
    variable.assign_add(tf.ones((WIDTH, WIDTH)))
    assert in_use(SECOND) <= used + SMALL


def test_a_value_stays_if_the_new_one_finds_no_room(monkeypatch):
    with tf.device(SECOND):
        variable = tf.Variable(tf.ones((WIDTH, WIDTH)))
    put, values = memory.put, []

    def put_second(variable, value):
        values.append(value)
        if len(values) == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        put(variable, value)

    monkeypatch.setattr(memory, "put", put_second)
    with room(SECOND, SMALL), pytest.raises(tf.errors.ResourceExhaustedError):
        memory.overwrite(variable, tf.zeros((WIDTH, WIDTH)))
    assert len(values) == 2
    np.testing.assert_array_equal(variable, np.ones((WIDTH, WIDTH)))


# What runs beside training.


def fitted():
    split = split_of(make())
    split.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    return split


def state_of(split):
    return [v.numpy() for v in (*split.model.variables, *split.optimizer.variables)]


def assert_same(values, references):
    for value, reference in zip(values, references):
        np.testing.assert_array_equal(value, reference)


def test_plain_keras_has_no_room_for_the_step_that_verify_compares_with():
    split = fitted()
    x, y = np.repeat(X, 256, axis=0), np.repeat(Y, 256, axis=0)
    before = state_of(split)
    with room(DEFAULT, 30 * MIB):
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            split.verify(x, y)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Out of memory while verifying: plain Keras takes this step, without stages."
    assert lines[1].startswith("To be stored: a tensor of shape [4096,")
    assert "fewer samples" in lines[-1]
    assert_same(state_of(split), before)
    split.verify(X, Y)


def test_measuring_a_micro_batch_that_does_not_fit():
    split = fitted()
    with (
        room(SECOND, MIB),
        pytest.raises(
            tf.errors.ResourceExhaustedError,
            match=r"measuring stage 1 \(hidden_2 … last\) on /GPU:3",
        ) as caught,
    ):
        split.measure(4096)
    assert "`num_samples`" in str(caught.value)
    split.measure(4)


def test_profile_undoes_its_steps_on_devices_without_room_for_a_second_value(monkeypatch):
    split = fitted()
    before = state_of(split)
    filling = contextlib.ExitStack()
    measure = measured_timeline._measure

    def measure_and_fill(*arguments):
        measured = measure(*arguments)
        filling.enter_context(room(FIRST, SMALL))
        filling.enter_context(room(SECOND, SMALL))
        return measured

    monkeypatch.setattr(measured_timeline, "_measure", measure_and_fill)
    with filling:
        split.profile(X, Y)
    assert_same(state_of(split), before)
