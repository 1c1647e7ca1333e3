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
