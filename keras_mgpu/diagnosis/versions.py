"""Check: the software. Says which versions these are, and whether they have what we need."""

from __future__ import annotations

import os
import platform

import keras
import numpy as np
import tensorflow as tf

from keras_mgpu.diagnosis.privacy import without_names
from keras_mgpu.diagnosis.report import FAILED, OK, Finding
from keras_mgpu.internals.private_names import missing
from keras_mgpu.system.nvidia_driver import driver_version
from keras_mgpu.version import __version__

# What changes how TensorFlow runs GPUs.
SETTINGS = (
    "NVIDIA_TF32_OVERRIDE",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_THREAD_COUNT",
    "TF_GPU_THREAD_MODE",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def check_versions() -> Finding:
    """The versions in use, and whether Keras and TensorFlow have every private name we need."""
    build = tf.sysconfig.get_build_info()
    data = {
        "keras_mgpu": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "num_cpus": os.cpu_count(),
        "cuda": build.get("cuda_version", ""),
        "cudnn": build.get("cudnn_version", ""),
        "driver": driver_version(),
        "settings": {
            name: without_names(os.environ[name]) for name in SETTINGS if name in os.environ
        },
    }
    driver = f"driver {data['driver']}" if data["driver"] else "driver unknown"
    cuda = f"CUDA {data['cuda']}, cuDNN {data['cudnn']}" if data["cuda"] else "built without CUDA"
    lines = [
        f"keras-mgpu {data['keras_mgpu']}, TensorFlow {data['tensorflow']}, "
        f"Keras {data['keras']}, Python {data['python']}",
        f"{cuda}, {driver}, {data['system']}, {data['num_cpus']} processors",
    ]
    gone = [str(each) for each in missing()]
    if gone:
        lines.append(f"These versions lack what keras-mgpu needs: {'; '.join(gone)}.")
    return Finding(FAILED if gone else OK, tuple(lines), {**data, "missing": gone})
