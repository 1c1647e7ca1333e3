"""Trains one model on several workers with `fit`, which needs a fix in Keras 3.15.

To try it on one machine, let it start all workers:

python examples/multi_worker.py --local

On several machines, start it on each one, with a `--folder` that all of them can reach and with
TF_CONFIG set:
{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main():
    options = parse_options()
    if options.local:
        return start_workers(options.devices)
    return train(options)


def train(options):
    import keras
    import tensorflow as tf
    from keras import layers
    from sklearn.datasets import load_digits

    import keras_mgpu as km

    fixed = km.enable_multi_worker_fit()  # Call it before creating the strategy.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    me = strategy.cluster_resolver.task_id or 0
    if me == 0:
        print("Fixed in Keras:", *fixed, sep="\n  ")
    folder = Path(options.folder)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = load_digits(return_X_y=True)
    num = 256 if options.tiny else len(x)
    model.fit(
        x[:num].astype("float32") / 16,
        y[:num],
        batch_size=64,  # The total over all workers.
        epochs=2 if options.tiny else 10,
        verbose=2 if me == 0 else 0,
        # The same for every worker. No two workers write to the same path.
        callbacks=[
            km.DistributedCheckpoint(folder / "checkpoints"),
            km.DevicePlacementLogger(folder / "logs", verbose=0),
            km.GPUMetrics(folder / "logs"),
        ],
    )
    print(f"worker {me}: the sum of all weights is {sum(w.sum() for w in model.get_weights()):.6f}")
    return 0


def start_workers(count):
    """Starts this script once per worker, on this machine."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    arguments = [each for each in sys.argv[1:] if each != "--local"]
    workers = []
    for index in range(count):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        workers.append(
            subprocess.Popen(
                [sys.executable, __file__, *arguments],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
            )
        )
    return max(abs(worker.wait()) for worker in workers)


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local", action="store_true", help="start all workers on this machine")
    parser.add_argument(
        "--devices", type=int, default=2, help="number of workers with --local (default: 2)"
    )
    parser.add_argument(
        "--folder", default="multi_worker_run", help="output folder (default: multi_worker_run)"
    )
    parser.add_argument("--tiny", action="store_true", help="few images, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
