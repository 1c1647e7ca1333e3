"""Four logical CPU devices stand in for GPUs, in every test process.

With `KERAS_MGPU_SIMULATED_GPUS=4` simulated GPUs do, and `tests/simulated` is collected as well.
"""

import contextlib
import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import pytest
import simulated
import slow
import tensorflow as tf
from gpu_fixtures import driver, driver_folder, fake_clock, missing_ops, nvml  # noqa: F401

from keras_mgpu.system.devices import logical_devices

# The first three ask rich for colors without a terminal. The last hides what happens to text that
# is still in the buffer when the reader of a pipe closes it.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)
if simulated.NUM_GPUS:
    simulated.start()
else:
    logical_devices(4)
collect_ignore = [] if simulated.NUM_GPUS else ["simulated"]
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out most of what takes long")


def pytest_collection_modifyitems(config, items):
    """A long test that starts last would leave the other workers with nothing to do."""
    slow.longest_first(items)
    if config.getoption("--quick"):
        _keep(config, items, slow.is_quick)
    if simulated.NUM_GPUS:
        _keep(config, items, simulated.can_run)


def _keep(config, items, is_kept):
    config.hook.pytest_deselected(items=[each for each in items if not is_kept(each)])
    items[:] = [each for each in items if is_kept(each)]


def pytest_collection_finish():
    """What is imported by now stays: Keras, once per test, need not look for garbage in it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def devices():
    return list(simulated.DEVICES)


@pytest.fixture(scope="module", autouse=True)
def _keras_as_on_cpus(request):
    needs_it = simulated.NUM_GPUS and request.path.parent.name != "simulated"
    with simulated.as_on_cpus() if needs_it else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _fresh_keras(request):
    import keras

    if not hasattr(request.module, "keras"):  # Tests of the pure core have nothing to clear.
        yield
        return
    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()
    keras.backend.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
