"""Tests on simulated GPUs: how they start, and which tests have no part in them."""

import contextlib
import importlib
import os

import pytest

# How many there are, 0 without the simulator.
NUM_GPUS = int(os.environ.get("KERAS_MGPU_SIMULATED_GPUS", "0"))
# What tests take for GPUs, whichever there are.
DEVICES = [f"/GPU:{k}" for k in range(NUM_GPUS)] or ["/CPU:0", "/CPU:1", "/CPU:2", "/CPU:3"]
# The same as reports show them.
NAMES = [device.strip("/") for device in DEVICES]

NO_DEVICE = "no device has a part in it"
HAS_DRIVER = "metrics come from the stand-in for a driver, which knows GPUs of its own"
NO_XLA = "XLA has no compiler for simulated GPUs"
LOGICAL = "it is about logical CPU devices"
PROCESSES = "its processes train on CPUs"
ONE_WORKER = "it takes all GPUs of a process for collectives, which a process can do only once"

# Parts of the names of tests, and why they do not run on simulated GPUs.
LEFT_OUT = {
    "keras_mgpu/blueprint/": NO_DEVICE,
    "tests/blueprint/": NO_DEVICE,
    "tests/cli/": NO_DEVICE,
    "tests/monitoring/": HAS_DRIVER,
    "tests/system/": NO_DEVICE,
    "test_architecture.py": NO_DEVICE,
    "test_docs.py": PROCESSES,
    "test_examples.py": PROCESSES,
    "callbacks/test_gpu_metrics": HAS_DRIVER,
    "placements/test_gpu_links.py": HAS_DRIVER,
    "pipeline/test_xla.py": NO_XLA,
    "test_a_function_that_compiles_is_compiled": NO_XLA,
    "test_compiled_by_xla": NO_XLA,
    "test_what_is_written_is_the_state_at_the_save[True]": NO_XLA,
    "placements/test_analysis.py": LOGICAL,
    "placements/test_executed_graph.py": LOGICAL,
    "diagnosis/test_machine.py": LOGICAL,
    "test_a_label_that_is_out_of_range": LOGICAL,
    "test_a_step_with_missing_ops_is_not_shown_as_complete": "on GPUs a timeline shows kernels, "
    "and the profiler misses none",
    "profiling/test_short_stages.py": "every stage is short where kernels take no time",
    "[no GPU to choose]": "there are GPUs to choose",
    "leave_their_device[scaled]": "Keras decides on the host whether to apply scaled gradients, "
    "with ops whose sizes no graph has",
    "one worker]": ONE_WORKER,
    "[`MultiWorkerMirroredStrategy`, 1 worker]": ONE_WORKER,
    "test_every_worker_writes_its_own_report": PROCESSES,
    "test_parameter_servers": PROCESSES,
    "placements/test_placement_strategies.py::test_the_report_agrees_with_the_log": PROCESSES,
    "test_statistics_of_each_worker": PROCESSES,
    "checkpoints/test_topologies.py::test_two_workers": PROCESSES,
    "test_strategies.py::test_two_workers": PROCESSES,
    "test_keras_alone_fails_with_two_workers": PROCESSES,
    "test_workers_that_do_not_fit_together": PROCESSES,
    "test_a_process_that_is_killed_ends_the_others": PROCESSES,
    "test_a_worker_that_dies_during_a_save_is_named": PROCESSES,
    "test_sigterm_to_one_of_two_workers_saves_both": PROCESSES,
}


def can_run(item):
    return not any(part in item.nodeid for part in LEFT_OUT)


def start():
    """Gives TensorFlow the simulated GPUs, and Keras no cuDNN.

    Where Keras sees a GPU, LSTM and GRU become CudnnRNNV3, an op without a CPU kernel.
    """
    import simgpu

    simgpu.load(NUM_GPUS)
    from keras.src import backend

    recurrent = importlib.import_module("keras.src.backend.tensorflow.rnn")
    recurrent.cudnn_ok = backend.cudnn_ok = lambda *arguments, **options: False


@contextlib.contextmanager
def without_xla():
    """Has Keras take `jit_compile="auto"` for `False`, as on a CPU.

    Where it sees a GPU it means XLA, which has no compiler for these devices.
    """
    from keras.src.trainers.trainer import Trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_resolve_auto_jit_compile", lambda trainer: False)
        yield


@contextlib.contextmanager
def as_on_cpus():
    """What tests need that are not made for simulated GPUs.

    No XLA, and no warning that stages are too short for a GPU: here kernels take no time.
    """
    from keras_mgpu.profiling import short_stages

    with without_xla(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_stages, "SHORT_SECONDS", 0.0)
        yield
