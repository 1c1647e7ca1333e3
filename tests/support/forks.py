"""Scripts in processes of their own, forked from one that has imported TensorFlow and Keras.

A new interpreter takes seconds to import them. A fork has them, and a TensorFlow that is as unused
as after the import: it can still be given devices, threads and a place in a cluster.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

# Modules of this folder cannot be imported beforehand: Python gives the process that is forked no
# `sys.path`, and skips in silence what it does not find.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "keras",
        "tensorflow",
        "keras_mgpu.callbacks.device_placement_logger",
        "keras_mgpu.callbacks.distributed_checkpoint",
        "keras_mgpu.callbacks.gpu_metrics",
        "keras_mgpu.pipeline.pipeline_split",
    ]
)


def run(script, *arguments, cwd=None, environment=(), timeout=300):
    """Like `subprocess.run` with this Python, and captured text; never raises for an exit code."""
    process = ScriptProcess(script, *arguments, cwd=cwd, environment=environment)
    try:
        stdout, stderr = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.command, process.returncode, stdout, stderr)


def run_code(code, folder, *arguments):
    """Runs code that may import what tests share; a failure shows what it printed."""
    script = folder / "script.py"
    here = os.path.dirname(__file__)
    script.write_text(f"import sys; sys.path.insert(0, {here!r})\n{code}")
    finished = run(script, *arguments)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


class ScriptProcess:
    """A script in a fork, with the methods of a `subprocess.Popen`.

    Args:
        script: Path of a Python file.
        arguments: What it finds in `sys.argv`.
        cwd: Where it runs. Defaults to the folder of this process.
        environment: Variables that it has beside those of this process.
        ends: Optional barrier that it waits at before it ends.
    """

    def __init__(self, script, *arguments, cwd=None, environment=(), ends=None):
        self.command = [str(script), *map(str, arguments)]
        self._stdout, self._stderr = _file_for(self), _file_for(self)
        self._ends = ends  # Else it would be gone before the process has it.
        options = (dict(environment), cwd, (self._stdout, self._stderr), ends)
        self._process = PROCESSES.Process(target=_run_script, args=(self.command, *options))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def kill(self):
        self._process.kill()

    def communicate(self, timeout=None):
        """Waits; returns what it wrote to its two streams."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.command, timeout)
        return _text(self._stdout), _text(self._stderr)


def _file_for(owner):
    """A file that is there as long as its owner."""
    handle, path = tempfile.mkstemp()
    os.close(handle)
    weakref.finalize(owner, os.remove, path)
    return path


def _text(path):
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _run_script(command, environment, cwd, outputs, ends):
    """Runs a script as if this process had been started for it."""
    os.environ.update(environment)
    os.chdir(cwd or os.getcwd())
    for stream, output in zip((sys.stdout, sys.stderr), outputs):
        stream.flush()
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream.fileno())
    sys.argv = command
    sys.path.insert(0, os.path.dirname(command[0]))
    try:
        runpy.run_path(command[0], run_name="__main__")
        # This process ends at once, which one with an interpreter to take down does not: what it
        # has handed over for the last step may not have left it.
        if ends is not None:
            with contextlib.suppress(threading.BrokenBarrierError):
                ends.wait(timeout=20)
    finally:
        atexit._run_exitfuncs()
