"""Which way to use two devices, for which model?

Three models that differ in what is scarce: much compute and few weights, many weights and little
compute, and one huge embedding of which a batch touches little. Each is trained in every way that
there is, with the same batch, on two cores.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import ONE_CORE, TWO_CORES_ONE_THREAD_AN_OP

MODELS = {
    "conv net, 0.1 M weights": "conv",
    "dense net, 17 M weights": "dense",
    "embedding, 26 M weights": "embedding",
}
PLAIN = "one device"
WAYS = {
    PLAIN: "plain",
    "`MirroredStrategy`, 2 devices": "mirrored",
    "`MultiWorkerMirroredStrategy`, 2 processes": "workers",
    "`CentralStorageStrategy`, 2 devices": "central",
    "parameter server, 2 workers, asynchronous": "servers",
    "`PipelineSplit`, 2 devices, 8 micro-batches": "split",
}
NUM_STEPS, WARM_UP, BATCH = 8, 3, 128


def run(quick: bool) -> Table:
    """Measures every way with every model, in processes of their own."""
    steps = 2 if quick else NUM_STEPS
    cells = {}
    for way in WAYS:
        for model in MODELS:
            cells[way, model] = _measure(WAYS[way], MODELS[model], steps)
            print(f"  {way}, {model}: {1000 * cells[way, model]:.0f} ms", flush=True)
    rows = []
    for way in WAYS:
        row = [way]
        for model in MODELS:
            seconds = cells[way, model]
            row.append(f"{1000 * seconds:.0f} ms, {cells[PLAIN, model] / seconds:.2f}x")
        rows.append(tuple(row))
    return Table(columns=("a batch of 128", *MODELS), rows=tuple(rows))


def _measure(way: str, model: str, steps: int) -> float:
    """Starts all processes of a way; returns the seconds of a step."""
    jobs = {"workers": ["worker"] * 2, "servers": ["chief", "worker", "worker", "ps"]}.get(way, [])
    cores = ONE_CORE if way == "plain" else TWO_CORES_ONE_THREAD_AN_OP
    task = {"way": way, "model": model, "steps": steps}
    if not jobs:
        return row_process.measure("strategies.benchmark", task, cores)["seconds"]
    cluster: dict[str, list[str]] = {job: [] for job in jobs}
    places = []
    for job, port in zip(jobs, _free_ports(len(jobs))):
        places.append({"type": job, "index": len(cluster[job])})
        cluster[job].append(f"127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(jobs)) as pool:
        task["done"] = f"{folder}/done"
        environments = [
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": place})} for place in places
        ]
        found = list(
            pool.map(
                lambda environment: row_process.measure(
                    "strategies.benchmark", task, cores, environment
                ),
                environments,
            )
        )
    return found[0]["seconds"]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(way: str, model: str, steps: int, done: str = "") -> dict[str, float]:
    """Trains in this process. TensorFlow is loaded only here."""
    if way == "servers":
        return _with_servers(model, steps, done)
    import keras
    import tensorflow as tf

    import keras_mgpu as km

    if way == "workers":
        km.enable_multi_worker_fit()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        host, *devices = km.logical_devices(3)
        strategy = {
            "mirrored": lambda: tf.distribute.MirroredStrategy(devices),
            "central": lambda: tf.distribute.experimental.CentralStorageStrategy(devices, host),
        }.get(way, tf.distribute.get_strategy)()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        net = _make_model(model)
        if way == "split":
            net = km.PipelineSplit(net, devices, micro_batches=8)
        net.compile("sgd", "mse", jit_compile=False)
    x, y = _data(model, BATCH * (steps + WARM_UP))
    from step_times import StepTimes

    times = StepTimes()
    net.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[times])
    return {"seconds": times.median(WARM_UP)}


def _with_servers(model: str, steps: int, done: str) -> dict[str, float]:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
        )
        while not Path(done).exists():
            time.sleep(0.1)
        del server
        return {}
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        net = _make_model(model)
        net.compile("sgd")
        net.optimizer.build(net.trainable_variables)

    def on_worker(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x, training=True) - y))
        weights = net.trainable_variables
        net.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    step = tf.function(lambda x, y: strategy.run(on_worker, (x, y)))
    x, y = _data(model, BATCH)
    times = []
    for _ in range(WARM_UP + 2):  # Rounds of as many steps; the first ones build.
        begin = time.perf_counter()
        for _ in range(steps):
            coordinator.schedule(step, args=(x, y))
        coordinator.join()
        times.append((time.perf_counter() - begin) / steps)
    Path(done).touch()
    return {"seconds": statistics.median(times[WARM_UP:])}


def _make_model(name: str) -> Any:
    import keras
    from keras import layers

    if name == "conv":
        convs = [layers.Conv2D(48, 3, activation="relu", padding="same") for _ in range(4)]
        inputs, body = keras.Input((24, 24, 3)), [*convs, layers.GlobalAveragePooling2D()]
    elif name == "dense":
        inputs = keras.Input((2048,))
        body = [layers.Dense(2048, activation="relu") for _ in range(4)]
    else:
        inputs = keras.Input((64,), dtype="int32")
        embedding = layers.Embedding(400_000, 64)
        body = [embedding, layers.GlobalAveragePooling1D(), layers.Dense(512, activation="relu")]
    return keras.Sequential([inputs, *body, layers.Dense(4)])


def _data(name: str, num: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    y = rng.standard_normal((num, 4)).astype("float32")
    if name == "embedding":
        return rng.integers(0, 400_000, (num, 64)).astype("int32"), y
    shape = (24, 24, 3) if name == "conv" else (2048,)
    return rng.standard_normal((num, *shape)).astype("float32"), y
