"""Cuts a U-Net by layer names, with skip connections across several stages and two outputs.

A value goes directly from the stage that produces it to the stages that read it.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import keras_mgpu

# A stage ends after each of these layers.
CUTS = {
    2: ["bottom"],
    3: ["down_2", "up_2"],
    4: ["down_2", "bottom", "up_2"],
}


def main():
    options = parse_options()
    keras.utils.set_random_seed(0)
    devices = keras_mgpu.pick_devices(options.devices)
    x, y = circles(32 if options.tiny else 320)

    model = u_net(4 if options.tiny else 16)
    split = keras_mgpu.PipelineSplit(model, devices, micro_batches=4, cuts=CUTS[options.devices])
    split.compile(
        "adam",
        loss={"mask": "binary_crossentropy", "area": "mse"},
        loss_weights={"mask": 1.0, "area": 10.0},
        metrics={"mask": "accuracy", "area": "mae"},
    )
    print(split.plan.table(split.devices))
    show_skips(split)
    print()
    print(split.verify(x[:16], {name: target[:16] for name, target in y.items()}))
    print()
    split.fit(x, y, batch_size=32, epochs=1 if options.tiny else 5, verbose=2)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=int, default=3, choices=CUTS, help="number of devices (default: 3)"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for tests")
    return parser.parse_args()


def circles(num_images, size=16):
    """Returns noisy images of a circle, and as targets its pixels and its share of the image."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size]
    center_row, center_column = random.uniform(4, size - 4, (2, num_images, 1, 1))
    radius = random.uniform(2, 6, (num_images, 1, 1))
    inside = (rows - center_row) ** 2 + (columns - center_column) ** 2 < radius**2
    masks = inside[..., None].astype("float32")
    images = (masks + random.normal(0, 0.5, masks.shape)).astype("float32")
    return images, {"mask": masks, "area": masks.mean(axis=(1, 2))}


def u_net(width):
    image = keras.Input((16, 16, 1), name="image")
    fine = conv(image, width, "down_1")
    middle = conv(layers.MaxPooling2D(name="pool_1")(fine), 2 * width, "down_2")
    x = conv(layers.MaxPooling2D(name="pool_2")(middle), 4 * width, "bottom")

    area = layers.Dense(1, name="area")(layers.GlobalAveragePooling2D(name="pool_all")(x))

    x = layers.Concatenate(name="skip_2")([layers.UpSampling2D(name="grow_2")(x), middle])
    x = conv(x, 2 * width, "up_2")
    x = layers.Concatenate(name="skip_1")([layers.UpSampling2D(name="grow_1")(x), fine])
    x = conv(x, width, "up_1")
    mask = layers.Conv2D(1, 1, activation="sigmoid", name="mask")(x)
    return keras.Model(image, {"mask": mask, "area": area}, name="u_net")


def conv(x, width, name):
    return layers.Conv2D(width, 3, padding="same", activation="relu", name=name)(x)


def show_skips(split):
    """Prints which stages each stage reads from."""
    makers = {value: stage.index for stage in split.stages for value in stage.outputs}
    print()
    for stage in split.stages:
        sources = sorted({makers[value] for value in stage.inputs if value in makers})
        print(f"stage {stage.index} reads from", sources or "the data")


if __name__ == "__main__":
    main()
