"""Devices that are too small, in a process that has all of their memory to itself.

What other tests have left there, and memory that TensorFlow reserves piece by piece, would decide
what still fits.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "memory"


def test_devices_that_are_too_small():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "SIMGPU_GROWTH": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
