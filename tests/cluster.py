"""Several devices, and several worker processes, on this machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


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
    library = folder / "libnvidia-ml.so.1"
    path = HERE / "nvml" / source
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(path)], check=True)
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
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    processes = []
    for index in range(count):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "worker.py"), task, str(directory), *options],
                env={
                    **os.environ,
                    "TF_CONFIG": json.dumps(config),
                    "GRPC_FAIL_FAST": "use_caller",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finish(processes, timeout=240):
    """Waits for all of them; a failure shows what they printed."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    for process, output in zip(processes, outputs):
        if process.returncode:
            raise AssertionError(f"exit code {process.returncode}:\n{output[-5000:]}")
