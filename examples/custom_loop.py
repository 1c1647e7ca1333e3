"""A custom training loop over mirrored devices, with the same callbacks as `fit`.

python examples/custom_loop.py
tensorboard --logdir custom_loop_run
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import keras_mgpu as km

BATCH_SIZE = 64


def main():
    options = parse_options("custom_loop_run")
    strategy = tf.distribute.MirroredStrategy(km.pick_devices(options.devices))
    folder = Path(options.folder)
    keras.utils.set_random_seed(0)
    model = make_model(strategy)
    step = make_step(strategy, model)
    x, y = digits(options.tiny)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH_SIZE)
    data = strategy.experimental_distribute_dataset(data)

    callbacks = keras.callbacks.CallbackList(
        [km.DevicePlacementLogger(folder / "logs", step=step), km.GPUMetrics(folder / "logs")],
        model=model,
    )
    callbacks.on_train_begin()
    for epoch in range(2 if options.tiny else 10):
        callbacks.on_epoch_begin(epoch)
        for number, batch in enumerate(data):
            callbacks.on_train_batch_begin(number)
            loss = step(*batch)
            callbacks.on_train_batch_end(number, {"loss": loss})
        callbacks.on_epoch_end(epoch, {"loss": loss})
        print(f"epoch {epoch}: loss {float(loss):.4f}")
    callbacks.on_train_end()


def make_model(strategy):
    """Creates all variables in the strategy's scope."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                layers.Dense(128, activation="relu"),
                layers.Dropout(0.2),
                layers.Dense(128, activation="relu"),
                layers.Dense(10),
            ]
        )
        model.compile(keras.optimizers.Adam(1e-3))
        model.optimizer.build(model.trainable_variables)
    return model


def make_step(strategy, model):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            # Each replica sees a part of the batch, so divide by the size of the whole batch.
            loss = loss_of(y, model(x, training=True)) / BATCH_SIZE
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(on_replica, (x, y)), axis=None)

    return step


def digits(is_tiny):
    x, y = load_digits(return_X_y=True)
    num = 256 if is_tiny else 1792  # Whole batches.
    return x[:num].astype("float32") / 16, y[:num]


def parse_options(folder):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    parser.add_argument("--folder", default=folder, help=f"output folder (default: {folder})")
    parser.add_argument(
        "--die-after", type=int, default=0, metavar="BATCHES", help="used by custom_loop_resume.py"
    )
    parser.add_argument("--tiny", action="store_true", help="few images, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
