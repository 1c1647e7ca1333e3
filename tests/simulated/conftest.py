"""Tests here need simulated GPUs; `make simulate` has them."""

import pytest
import simulated

if not simulated.NUM_GPUS:
    raise pytest.UsageError(
        "Tests of tests/simulated run on simulated GPUs: make simulate TESTS=tests/simulated"
    )
