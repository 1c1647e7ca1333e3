"""A custom loop with parameter servers: `python parameter_server.py DIRECTORY STOP_AFTER`.

Run by a test; servers, worker and coordinator share this process. One worker takes one step at a
time, so that runs can be compared.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import worker
from cluster import free_ports

import keras_mgpu as km


def start_servers(num_servers):
    ports = free_ports(num_servers + 1)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    spec = tf.train.ClusterSpec({"ps": addresses[:-1], "worker": addresses[-1:]})
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", start=True)
        for job, index in [("worker", 0), *(("ps", i) for i in range(num_servers))]
    ]
    return spec, servers


def main(directory, stop_after):
    spec, _servers = start_servers(2)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    coordinator, model, step = worker.coordinated(resolver)

    checkpoint = km.DistributedCheckpoint(directory / "checkpoints", save_freq=2)
    placement = km.DevicePlacementLogger(directory / "logs", verbose=0, step=step)
    callbacks = keras.callbacks.CallbackList([checkpoint, placement], model=model, add_history=True)
    callbacks.on_train_begin()
    start = int(model.optimizer.iterations.numpy())
    if start:
        sys.stdout.write(f"went on from {start}\n")
    callbacks.on_epoch_begin(0)
    for number in range(start, 8):
        callbacks.on_train_batch_begin(number)
        coordinator.schedule(step, args=worker.batch(number))
        coordinator.join()
        callbacks.on_train_batch_end(number)
        if number + 1 == stop_after:
            sys.stdout.write(f"stopped at {stop_after}\n")
            sys.stdout.flush()
            os._exit(0)
    callbacks.on_epoch_end(0, {})
    callbacks.on_train_end()
    np.savez(directory / "values.npz", **worker.values_of(model))
    sys.stdout.flush()
    os._exit(0)  # The servers would wait for one another.


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]), int(sys.argv[2]))
