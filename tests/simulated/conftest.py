"""Tests here need simulated GPUs; `make simulate` has them."""

import os

import pytest
import simulated

if not simulated.NUM_GPUS:
    raise pytest.UsageError(
        "Tests of tests/simulated run on simulated GPUs: make simulate TESTS=tests/simulated"
    )
# `test_memory_alone.py` runs them.
collect_ignore = [] if os.environ.get("SIMGPU_GROWTH") == "0" else ["memory"]
