"""How TensorFlow runs its GPUs: settings that it reads when it starts them, and never again."""

from __future__ import annotations

import os

import tensorflow as tf

from keras_mgpu.internals.tf_devices import has_started

THREAD_MODE = "TF_GPU_THREAD_MODE"
PRIVATE = "gpu_private"


def prepare_gpus(memory_growth: bool = False) -> list[str]:
    """Prepares all visible GPUs for working at the same time, and returns their names.

    By default, the kernels of all GPUs are launched by the threads that also run ops on the CPU, so
    one GPU may wait while another one is served. This function gives each GPU two threads of its
    own. An environment variable `TF_GPU_THREAD_MODE` that is already set is left alone.

    Call it before anything else uses TensorFlow. `pick_devices` does so by itself.

    Example:

    ```python
    devices = keras_mgpu.prepare_gpus()
    ```

    Args:
        memory_growth: Boolean. Whether memory is allocated as it is needed, on all GPUs, instead of
            all at once. Defaults to `False`, which leaves TensorFlow's setting as it is.

    Returns:
        A list of device names such as `"/GPU:0"`. Empty without GPUs, and nothing is changed then.

    Raises:
        RuntimeError: If TensorFlow has already started its GPUs with other settings.
    """
    if not isinstance(memory_growth, bool):
        raise TypeError(
            "`memory_growth` must be a boolean. "
            f"Received: memory_growth={memory_growth!r} (of type {type(memory_growth).__name__})"
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return []
    growth = tf.config.experimental.get_memory_growth
    is_ready = THREAD_MODE in os.environ and (not memory_growth or all(map(growth, gpus)))
    if has_started() and not is_ready:
        raise RuntimeError(
            "TensorFlow has already started its GPUs, and cannot change their settings. Call "
            "`keras_mgpu.prepare_gpus()` at the top of the program, before any model or tensor is "
            f"created, or run the program with {THREAD_MODE}={PRIVATE} in its environment. "
            f"Received: memory_growth={memory_growth}"
        )
    os.environ.setdefault(THREAD_MODE, PRIVATE)
    if memory_growth:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    return [f"/GPU:{index}" for index in range(len(gpus))]
