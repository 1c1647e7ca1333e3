"""Several devices, and several worker processes, on this machine."""

import atexit
import contextlib
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

HERE = Path(__file__).parent
DRIVER_NAME = "libnvidia-ml.so.1"
# Forks of a process that has imported everything already: TensorFlow alone takes seconds. Modules
# of this folder cannot be among them, as Python gives that process no `sys.path` and skips in
# silence what it does not find.
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


def mirrored(devices):
    """Two strategies in one process use the same keys for different collective operations.

    So this one goes without them.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def strategies(devices):
    """Every strategy that one process can have, by name."""
    import tensorflow as tf

    return {
        "one device": lambda: tf.distribute.OneDeviceStrategy(devices[1]),
        "mirrored": lambda: mirrored(devices[:2]),
        "one worker": tf.distribute.MultiWorkerMirroredStrategy,
        "central storage": lambda: tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=devices[:2], parameter_device=devices[2]
        ),
    }


def compile_driver(source, folder):
    """Compiles a stand-in for NVIDIA's driver library to where its own package looks for it."""
    library = folder / DRIVER_NAME
    path = HERE / "nvml" / source
    name = f"-Wl,-soname,{library.name}"  # By which a program finds it that has loaded it already.
    subprocess.run(["cc", "-shared", "-fPIC", name, "-o", str(library), str(path)], check=True)
    return folder


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_workers(count, task, directory, *options):
    """Starts `worker.py` `count` times; returns the processes."""
    return start(["worker"] * count, "worker.py", task, directory, *options)


def start(jobs, script, *arguments):
    """Starts a script of this folder once for each job, as one cluster; returns the processes."""
    cluster = {job: [] for job in jobs}
    places = []
    for job, port in zip(jobs, free_ports(len(jobs))):
        places.append({"type": job, "index": len(cluster[job])})
        cluster[job].append(f"127.0.0.1:{port}")
    processes, ends = [], PROCESSES.Barrier(len(jobs)) if set(jobs) == {"worker"} else None
    for task in places:
        config = json.dumps({"cluster": cluster, "task": task})
        environment = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"}
        processes.append(ScriptProcess(HERE / script, arguments, environment, ends))
    return processes


def run(script, *arguments, timeout=240):
    """Runs a script of this folder in a process of its own; returns what it printed."""
    process = ScriptProcess(HERE / script, arguments, {"CUDA_VISIBLE_DEVICES": "-1"}, ends=None)
    return finish([process], timeout)[0]


class ScriptProcess:
    """A script in a process of its own, with the methods of a `subprocess.Popen`.

    Where all of a cluster end by themselves, they do so together.
    """

    def __init__(self, script, arguments, environment, ends):
        handle, self._output = tempfile.mkstemp()
        os.close(handle)
        weakref.finalize(self, os.remove, self._output)
        self._ends = ends  # Else it would be gone before the process has it.
        command = [str(script), *map(str, arguments)]
        self._process = PROCESSES.Process(
            target=run_script, args=(command, environment, self._output, ends)
        )
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
        """Waits; returns what it printed, and nothing beside it."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._output, timeout)
        return Path(self._output).read_text(encoding="utf-8", errors="replace"), None


def run_script(command, environment, output, ends):
    """Runs a script as if this process had been started for it."""
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
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


def finish(processes, timeout=240):
    """Waits for all of them; a failure shows what they printed."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    for process, output in zip(processes, outputs):
        if process.returncode:
            raise AssertionError(f"exit code {process.returncode}:\n{output[-5000:]}")
    return outputs


def kill(processes):
    """Ends those that are still there."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
