"""Runs each row of a benchmark in a process of its own, on the cores the row may use.

TensorFlow reads its threads and devices once, and memory that was once resident stays in the
peak: only a new process starts every row from the same place. The process that starts them
never loads TensorFlow, since a child's peak begins at its parent's size.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cores:
    """The cores a row is pinned to, and TensorFlow's thread settings on them.

    Attributes:
        num: How many cores.
        intra_op: Threads within one op; 0 is TensorFlow's own choice, all cores.
        inter_op: Ops at a time; 0 is TensorFlow's own choice, all cores.
    """

    num: int
    intra_op: int = 0
    inter_op: int = 0

    @property
    def threads(self) -> str:
        return "TensorFlow's choice" if self.intra_op == 0 else f"{self.intra_op} an op"


ONE_CORE = Cores(1, intra_op=1, inter_op=1)
TWO_CORES = Cores(2)
TWO_CORES_ONE_THREAD_AN_OP = Cores(2, intra_op=1)


def measure(
    module: str, task: Mapping[str, Any], cores: Cores, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Calls `module.measure(**task)` in a new process and returns what it returned.

    Args:
        module: Name of a module below this folder, such as `"memory.benchmark"`.
        task: Keyword arguments that JSON can carry.
        cores: Where the process may run.
        environment: Environment variables to add.
    """
    order = json.dumps({"module": module, "task": dict(task), "cores": asdict(cores)})
    ran = subprocess.run(
        [sys.executable, str(HERE / "row_process.py"), order],
        capture_output=True,
        text=True,
        env={**os.environ, **_QUIET_AND_CPU_ONLY, **(environment or {})},
    )
    if ran.returncode != 0:
        raise RuntimeError(f"{module} failed with {dict(task)}:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


_QUIET_AND_CPU_ONLY = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def _pin(num_cores: int) -> None:
    """Keeps to the first cores; TensorFlow sizes its thread pools by what it finds here."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < num_cores:
        raise RuntimeError(f"This row needs {num_cores} cores, but may use only {len(allowed)}.")
    os.sched_setaffinity(0, allowed[:num_cores])


def _child(order: str) -> None:
    wanted = json.loads(order)
    cores = Cores(**wanted["cores"])
    _pin(cores.num)  # Before TensorFlow is loaded.
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(cores.intra_op)
    tf.config.threading.set_inter_op_parallelism_threads(cores.inter_op)
    result = importlib.import_module(wanted["module"]).measure(**wanted["task"])
    print(json.dumps(result))


if __name__ == "__main__":
    _child(sys.argv[1])
