"""Several devices, and several worker processes, on this machine."""

import json
import socket
import subprocess
from pathlib import Path

from forks import PROCESSES, ScriptProcess

HERE = Path(__file__).parent
DRIVER_NAME = "libnvidia-ml.so.1"


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
    """Starts a script of this folder once for each job, as one cluster; returns the processes.

    Where all of a cluster end by themselves, they do so together.
    """
    cluster = {job: [] for job in jobs}
    places = []
    for job, port in zip(jobs, free_ports(len(jobs))):
        places.append({"type": job, "index": len(cluster[job])})
        cluster[job].append(f"127.0.0.1:{port}")
    processes, ends = [], PROCESSES.Barrier(len(jobs)) if set(jobs) == {"worker"} else None
    for task in places:
        config = json.dumps({"cluster": cluster, "task": task})
        environment = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"}
        processes.append(
            ScriptProcess(HERE / script, *arguments, environment=environment, ends=ends)
        )
    return processes


def run(script, *arguments, timeout=240):
    """Runs a script of this folder in a process of its own; returns what it printed."""
    process = ScriptProcess(HERE / script, *arguments, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    return finish([process], timeout)[0]


def outputs_of(processes, timeout=240):
    """Waits for all of them; returns what each printed, on either stream."""
    return ["".join(process.communicate(timeout=timeout)) for process in processes]


def finish(processes, timeout=240):
    """Waits for all of them; a failure shows what they printed."""
    outputs = outputs_of(processes, timeout)
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
