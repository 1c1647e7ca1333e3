"""Tests on simulated GPUs: how they start, and which tests have no part in them."""

import os

# How many there are, 0 without the simulator.
NUM_GPUS = int(os.environ.get("KERAS_MGPU_SIMULATED_GPUS", "0"))
# What tests take for GPUs, whichever there are.
DEVICES = [f"/GPU:{k}" for k in range(NUM_GPUS)] or ["/CPU:0", "/CPU:1", "/CPU:2", "/CPU:3"]

# Parts of the names of tests, and why they do not run on simulated GPUs.
LEFT_OUT = {}


def start():
    """Gives TensorFlow the simulated GPUs."""
    import simgpu

    simgpu.load(NUM_GPUS)
    _train_without_what_cpus_lack()


def can_run(item):
    return not any(part in item.nodeid for part in LEFT_OUT)


def _train_without_what_cpus_lack():
    """Has Keras choose as on a CPU where it would choose what only real GPUs have.

    - LSTM and GRU become CudnnRNNV3, an op without a CPU kernel.
    - `jit_compile="auto"` becomes XLA, which has no compiler for these devices.
    """
    from keras.src import backend
    from keras.src.backend.tensorflow import rnn
    from keras.src.trainers.trainer import Trainer

    rnn.cudnn_ok = backend.cudnn_ok = lambda *arguments, **options: False
    Trainer._resolve_auto_jit_compile = lambda trainer: False
