"""Asynchronous training with parameter servers, and how stale gradients affect the loss.

Workers fetch weights, compute and send gradients, each at its own pace. When a gradient arrives,
other workers may have updated the weights; the number of such updates is its staleness. For
comparison, the same number of steps is taken one at a time, where no gradient is stale.

python examples/parameter_server.py --devices 3
"""

import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from multi_worker import free_ports
from sklearn.datasets import load_digits

import keras_mgpu as km

RATE = 0.5  # High enough for staleness to matter.


def main():
    options = parse_options()
    if "TF_CONFIG" in os.environ:
        return serve()
    cluster, servers = start_servers(options.devices)
    try:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        num_steps = 60 if options.tiny else 600
        print(f"{'':14}{'seconds':>9}{'staleness':>11}{'loss':>9}{'accuracy':>10}")
        for name, is_fresh in (("asynchronous", False), ("one at a time", True)):
            train(strategy, coordinator, name, is_fresh, num_steps)
    finally:
        for server in servers:
            server.kill()
    sys.stdout.flush()
    os._exit(0)  # Otherwise TensorFlow waits for the servers.


def train(strategy, coordinator, name, is_fresh, num_steps):
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
        )
        model.compile(keras.optimizers.SGD(RATE))
        model.optimizer.build(model.trainable_variables)
        staleness = tf.Variable(0, dtype="int64", trainable=False)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    iterations = model.optimizer.iterations

    def on_worker(x, y):
        begin = tf.identity(iterations.value)
        with tf.control_dependencies([begin]), tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        with tf.control_dependencies(gradients):
            moved = tf.identity(iterations.value) - begin
        staleness.assign_add(tf.cast(moved, "int64"))
        model.optimizer.apply_gradients(zip(gradients, weights))
        return loss

    step = tf.function(lambda x, y: strategy.run(on_worker, (x, y)))
    logger = km.DevicePlacementLogger(f"parameter_server_run/{name}", verbose=0, step=step)
    callbacks = keras.callbacks.CallbackList([logger], model=model)
    callbacks.on_train_begin()
    rng = np.random.default_rng(0)
    begin = time.perf_counter()
    for number in range(num_steps):
        some = rng.integers(0, len(x), 32)
        callbacks.on_train_batch_begin(number)
        coordinator.schedule(step, args=(x[some], y[some]))
        if is_fresh or number == 0:
            coordinator.join()
        callbacks.on_train_batch_end(number)
    coordinator.join()
    seconds = time.perf_counter() - begin
    callbacks.on_train_end()
    logits = model(x)
    loss, accuracy = float(loss_of(y, logits)), np.mean(np.argmax(logits, axis=1) == y)
    stale = float(staleness.numpy()) / num_steps
    print(f"{name:14}{seconds:9.2f}{stale:11.2f}{loss:9.4f}{accuracy:10.1%}", flush=True)


def start_servers(num_workers):
    """Starts this script once per parameter server and worker."""
    jobs = ["ps", *["worker"] * num_workers]
    cluster = {"ps": [], "worker": []}
    places = []
    for job, port in zip(jobs, free_ports(len(jobs))):
        places.append({"type": job, "index": len(cluster[job])})
        cluster[job].append(f"localhost:{port}")
    servers = []
    for task in places:
        config = json.dumps({"cluster": cluster, "task": task})
        servers.append(
            subprocess.Popen([sys.executable, __file__], env={**os.environ, "TF_CONFIG": config})
        )
    return cluster, servers


def serve():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    )
    server.join()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of workers (default: 2)")
    parser.add_argument("--tiny", action="store_true", help="few steps, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
