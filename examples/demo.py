"""Splits a small residual network over devices, trains it, and compares it with unsplit Keras.

Start here: it needs no GPU, no download and about a minute.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def quiet_stderr():
    """Hides what TensorFlow prints at import, before it reads the log level."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


with quiet_stderr():
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import keras_mgpu

BATCH_SIZE = 64
TOLERANCE = 1e-4  # Well above float32 rounding errors, well below any real error.

# Runs in a separate process, where `import keras_mgpu` fails.
OPEN_THE_FILE = """
import json, sys
sys.modules["keras_mgpu"] = None
try:
    import keras_mgpu
except ImportError:
    pass
else:
    sys.exit("keras_mgpu could be imported")
import keras, numpy
model = keras.models.load_model(sys.argv[1])
data = numpy.load(sys.argv[2])
print(json.dumps(model.evaluate(data["x"], data["y"], verbose=0, return_dict=True)))
"""


def main():
    """Returns the exit code: 0 if split and unsplit agree."""
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    # On GPUs that support it, TF32 is too imprecise for the comparison.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    devices = choose_devices(options.devices)
    train, valid = load_data(options.tiny)
    num_steps = options.epochs * -(-len(train[0]) // BATCH_SIZE)

    heading("The split")
    model = residual_network(width=8 if options.tiny else 16)
    unsplit = keras.models.clone_model(model)
    unsplit.set_weights(model.get_weights())
    split = keras_mgpu.PipelineSplit(model, devices, micro_batches=options.micro_batches)
    for each in (split, unsplit):
        compile_for(each, num_steps)
    show_split(split)

    heading("The same numbers as unsplit Keras")
    is_same = all([check_gradients(split, train), check_weights(split, unsplit, train)])

    heading("Training")
    result = fit(split, train, valid, options.epochs, options.out / "logs")

    heading("The saved file, without keras_mgpu")
    is_plain = check_file(split, valid, result, options.out)

    heading("View it in TensorBoard")
    print(f"{tensorboard_command()} --logdir {options.out / 'logs'}")
    return 0 if is_same and is_plain else 1


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="number of devices (default: all GPUs up to 4, or 2)",
    )
    parser.add_argument("--micro-batches", type=int, default=8, metavar="N", help="(default: 8)")
    parser.add_argument("--epochs", type=int, metavar="N", help="(default: 10)")
    parser.add_argument("--out", type=Path, default=Path("demo_run"), metavar="DIR")
    parser.add_argument(
        "--tiny", action="store_true", help="a small model and little data, for tests"
    )
    options = parser.parse_args()
    options.epochs = options.epochs or (1 if options.tiny else 10)
    return options


def choose_devices(num_devices):
    """Returns up to four GPUs, or logical CPU devices if there are not enough."""
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    num_devices = num_devices or (min(num_gpus, 4) if num_gpus > 1 else 2)
    if num_gpus >= num_devices:
        return [f"/GPU:{index}" for index in range(num_devices)]
    print(
        f"Not enough GPUs: using {num_devices} logical CPU devices. They share the same cores, so"
    )
    print("they show that splitting works, not how fast it is.")
    return keras_mgpu.logical_devices(num_devices)


def load_data(tiny):
    """Returns training and validation data: scanned digits of 8x8 pixels, from scikit-learn."""
    digits = load_digits()
    x = (digits.images / 16).astype("float32")[..., None]
    x_train, x_valid, y_train, y_valid = train_test_split(
        x, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    size = 150 if tiny else None
    return (x_train[:size], y_train[:size]), (x_valid[:size], y_valid[:size])


def residual_network(width):
    """Uses group normalization, which does not depend on the batch."""
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(width, 3, padding="same")(image)
    x = residual_block(x, width)
    x = residual_block(x, 2 * width, strides=2)
    x = residual_block(x, 2 * width)
    x = layers.GlobalAveragePooling2D()(normalize(x))
    return keras.Model(image, layers.Dense(10, name="digit")(x), name="residual_network")


def residual_block(x, width, strides=1):
    y = layers.Conv2D(width, 3, strides, padding="same")(normalize(x))
    y = layers.Conv2D(width, 3, padding="same")(normalize(y))
    if strides > 1:
        x = layers.Conv2D(width, 1, strides)(x)
    return layers.Add()([x, y])


def normalize(x):
    return layers.Activation("relu")(layers.GroupNormalization(4)(x))


def compile_for(model, num_steps):
    # Adam divides each gradient by its magnitude. It turns the rounding error of a zero gradient
    # into a full step, so weights could not be compared.
    rate = keras.optimizers.schedules.CosineDecay(0.05, num_steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def show_split(split):
    print(split.plan.table(split.devices))
    timeline = keras_mgpu.replay(split.schedule)
    print(f"\nOne step of {split.micro_batches} micro-batches (F forward, B backward, . idle):\n")
    print(timeline.draw())
    print(f"\nBubble: {timeline.bubble:.0%} idle time, if all stages are equally fast.")
    print("Peak:   " + ", ".join(map(str, timeline.peak_live)) + " live micro-batches per stage.")


def check_gradients(split, train):
    """Compares one step, split and unsplit, from the same state. `verify` changes nothing."""
    x, y = train
    report = split.verify(x[:BATCH_SIZE], y[:BATCH_SIZE])
    print(report.largest(3))
    print(f"(the 3 largest of {len(report.whole_batch.gradients)} gradients)")
    return report.max_relative <= TOLERANCE


def check_weights(split, unsplit, train, num_steps=5):
    """Compares the weights after some steps, split and unsplit, on the same batches."""
    # The last batch is smaller and does not divide evenly into micro-batches.
    size = min(len(train[0]), num_steps * BATCH_SIZE - 27)
    x, y = train[0][:size], train[1][:size]
    for model in (split, unsplit):
        model.fit(x, y, batch_size=BATCH_SIZE, shuffle=False, verbose=0)
    pairs = list(zip(split.weights, unsplit.weights))
    differences = [relative_difference(a.numpy(), b.numpy()) for a, b in pairs]
    index = np.argmax(differences)
    worst, path = differences[index], split.weights[index].path
    same = worst <= TOLERANCE
    print(f"\nWeights after {split.optimizer.iterations.numpy()} steps on {size} images:")
    print(f"largest relative difference {worst:.1e} ({path}): {'same' if same else 'NOT SAME'}")
    return same


def relative_difference(a, b):
    return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-12))


def fit(split, train, valid, epochs, logs):
    """Trains as with plain Keras, and returns loss and accuracy on the validation data."""
    split.fit(
        *train,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        validation_data=valid,
        callbacks=[keras.callbacks.TensorBoard(logs / time.strftime("%Y%m%d-%H%M%S"))],
        verbose="auto" if sys.stdout.isatty() else 2,
    )
    result = split.evaluate(*valid, verbose=0, return_dict=True)
    print(f"\nValidation accuracy: {result['accuracy']:.2%}, loss {result['loss']:.5f}")
    return result


def check_file(split, valid, expected, out):
    model_file, data_file = out / "model.keras", out / "validation.npz"
    split.save(model_file)
    np.savez(data_file, x=valid[0], y=valid[1])
    opened = subprocess.run(
        [sys.executable, "-c", OPEN_THE_FILE, model_file, data_file],
        # This process holds the memory of the GPUs, so the other one runs on the CPU.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    if opened.returncode:
        print(opened.stderr)
        return False
    result = json.loads(opened.stdout.splitlines()[-1])
    print(f"{model_file} opens in a process that cannot import keras_mgpu.")
    print(f"Validation accuracy there: {result['accuracy']:.2%}, loss {result['loss']:.5f}")
    return abs(result["loss"] - expected["loss"]) <= TOLERANCE * expected["loss"]


def tensorboard_command():
    """Returns the command as typed from the current directory."""
    command = Path(sys.executable).with_name("tensorboard")
    if not command.exists():
        return "tensorboard"
    return command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    sys.exit(main())
