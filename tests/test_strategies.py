"""All callbacks under every strategy, in `fit` and in a custom loop, and the table of the docs."""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict

import cluster
import keras
import numpy as np
import pytest
import strategy_table
import tensorflow as tf
import trial
import worker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.system.cluster import check_tf_config

HERE = cluster.HERE
LAYERS = {"first", "norm", "second", "third", "last"}


@pytest.fixture
def make_strategy(devices):
    """Makes a strategy by its name in the table."""
    strategies = cluster.strategies(devices)
    made = {
        "no strategy": tf.distribute.get_strategy,
        "`OneDeviceStrategy`": strategies["one device"],
        "`MirroredStrategy`, 2 devices": strategies["mirrored"],
        "`MirroredStrategy`, 4 devices": lambda: cluster.mirrored(devices),
        "`MultiWorkerMirroredStrategy`, 1 worker": strategies["one worker"],
        "`CentralStorageStrategy`": strategies["central storage"],
        "`PipelineSplit`": tf.distribute.get_strategy,
    }
    return lambda name: made[name]()


ONE_PROCESS = [row.name for row in strategy_table.ROWS if row.dies == strategy_table.NOT_ASKED]


def make_model(strategy, name, devices):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = worker.make_model()
    if name != "`PipelineSplit`":
        return model
    split = km.PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("adam", "mse", metrics=["mae"])
    return split


@pytest.fixture(scope="module")
def plain():
    """Unsplit Keras without strategy or callbacks: its history and its values."""
    keras.utils.set_random_seed(0)
    model = worker.make_model()
    x, y = trial.data()
    history = model.fit(
        x, y, batch_size=trial.BATCH_SIZE, epochs=trial.EPOCHS, shuffle=False, verbose=0
    )
    return history.history, worker.values_of(model)


def assert_like(plain, history, values):
    assert history.keys() == plain[0].keys()
    for name, numbers in plain[0].items():
        np.testing.assert_allclose(history[name], numbers, rtol=1e-5, err_msg=name)
    for key, value in plain[1].items():
        np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


def check_files(folder, values, num_workers=1):
    """What all callbacks have left is there, is right, and nobody wrote where another one did."""
    fresh = worker.make_model()
    fresh.optimizer.build(fresh.trainable_variables)
    assert km.restore_checkpoint(folder / "checkpoints", fresh) is not None
    for key, value in worker.values_of(fresh).items():
        np.testing.assert_array_equal(value, values[key], err_msg=key)
    reports = sorted((folder / "logs").glob("placement*.json"))
    assert len(reports) == num_workers
    for report in reports:
        found = km.PlacementReport.from_json(report.read_text())
        assert {row.path for row in found.layers} >= LAYERS
    prefixes = [f"worker_{n}_" if num_workers > 1 else "" for n in range(num_workers)]
    for prefix in prefixes:
        events = EventAccumulator(str(folder / "logs" / f"{prefix}host")).Reload()
        assert events.Scalars("train/step_time")[-1].step == trial.NUM_STEPS
    writers = defaultdict(set)
    for path in (folder / "logs").rglob("events.out.tfevents.*"):
        writers[path.parent].add(re.search(r"\.(\d+)\.\d+(\.gpu|\.v2)?$", path.name)[1])
    assert len(writers) >= 2 * num_workers
    assert all(len(processes) == 1 for processes in writers.values())


def assert_no_warning(caplog):
    ours = [record for record in caplog.records if record.name == "keras_mgpu"]
    assert [record.getMessage() for record in ours if record.levelname != "INFO"] == []


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_fit(make_strategy, devices, tmp_path, caplog, plain, name):
    strategy = make_strategy(name)
    model = make_model(strategy, name, devices)
    history = trial.fit(strategy, model, tmp_path)
    if name == "`CentralStorageStrategy`":  # What Keras reports there is wrong, as the table says.
        assert abs(history["loss"][0] / plain[0]["loss"][0] - 1) > 0.01
        history = plain[0]
    assert_like(plain, history, worker.values_of(model))
    check_files(tmp_path, worker.values_of(model))
    assert_no_warning(caplog)


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_loop(make_strategy, devices, tmp_path, caplog, name):
    strategy = make_strategy(name)
    model = make_model(strategy, name, devices)
    trial.loop(strategy, model, tmp_path)
    check_files(tmp_path, worker.values_of(model))
    assert_no_warning(caplog)


# Several processes.


@pytest.mark.parametrize("how", ["fit", "loop"])
def test_two_workers(tmp_path, plain, how):
    outputs = cluster.finish(cluster.start(["worker"] * 2, "trial.py", how, tmp_path))
    values = [dict(np.load(tmp_path / f"values {index}.npz")) for index in range(2)]
    for key, value in values[0].items():
        np.testing.assert_array_equal(values[1][key], value, err_msg=key)
    if how == "fit":
        for index in range(2):
            history = json.loads((tmp_path / f"history {index}.json").read_text())
            assert_like(plain, history, values[index])
    check_files(tmp_path, values[0], num_workers=2)
    assert all("LOGGED" not in output for output in outputs)


def test_keras_alone_fails_with_two_workers(tmp_path):
    """The day this fails, Keras is mended, and the repair is not needed any more."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "import tensorflow as tf, trial, worker\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "with strategy.scope():\n"
        "    model = worker.make_model()\n"
        "model.fit(*trial.data(), verbose=0)\n"
    )
    processes = cluster.start(["worker"] * 2, script, "alone", HERE)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode for process in processes)
    assert any("PerReplica" in output for output in outputs)


def test_the_repair_touches_nothing_else():
    """Whatever else is trained after it is trained as before."""
    script = (
        "import keras_mgpu as km, keras\n"
        "from keras.src.backend.tensorflow import trainer\n"
        "before = trainer.reduce_per_replica\n"
        "assert len(km.enable_multi_worker_fit()) == 2\n"
        "after = trainer.reduce_per_replica\n"
        "assert km.enable_multi_worker_fit() == ()\n"
        "assert trainer.reduce_per_replica is after is not before\n"
        "trainer.reduce_per_replica = lambda values, strategy, reduction: (\n"
        "    strategy.reduce('MEAN', values, axis=None))\n"  # As a mended Keras would.
        "assert km.enable_multi_worker_fit() == ()\n"
        "import numpy as np\n"
        "import tensorflow as tf\n"
        "with tf.distribute.OneDeviceStrategy('/CPU:0').scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "trainer.reduce_per_replica = after\n"
        "model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_ends_the_others(tmp_path, victim):
    processes = cluster.start(["worker"] * 2, "trial.py", "slow fit", tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("running *"))) == 2, processes)
    processes[victim].kill()
    killed = time.monotonic()
    other = processes[1 - victim]
    try:
        output = other.communicate(timeout=90)[0]
    finally:
        cluster.kill(processes)
    assert time.monotonic() - killed < 60
    assert other.returncode not in (0, None)
    assert "Restart your program" in output or "cannot be reached any more" in output


def wait_until(is_so, processes, timeout=120):
    end = time.monotonic() + timeout
    while not is_so():
        for process in processes:
            assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_parameter_servers(tmp_path):
    processes = cluster.start(["chief", "worker", "ps", "ps"], "trial.py", "servers", tmp_path)
    try:
        (output,) = cluster.finish(processes[:1])
    finally:
        cluster.kill(processes)
    check_files(tmp_path, dict(np.load(tmp_path / "values 0.npz")))
    assert "LOGGED" not in output


def test_a_server_that_is_killed_ends_the_coordinator(tmp_path):
    processes = cluster.start(["chief", "worker", "ps"], "trial.py", "slow servers", tmp_path)
    try:
        wait_until(lambda: list(tmp_path.glob("running *")), processes)
        processes[2].kill()
        killed = time.monotonic()
        output = processes[0].communicate(timeout=90)[0]
        assert time.monotonic() - killed < 60
        assert processes[0].returncode not in (0, None)
        assert "UnavailableError" in output
    finally:
        cluster.kill(processes)


def test_parameter_servers_under_fit_are_refused_by_keras(tmp_path):
    """Before any callback is asked: so the docs say it, not a callback."""
    script = (
        "import parameter_server, tensorflow as tf, worker, os, traceback\n"
        "spec, _ = parameter_server.start_servers(1)\n"
        "resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer='grpc')\n"
        "strategy = tf.distribute.ParameterServerStrategy(resolver)\n"
        "with strategy.scope():\n"
        "    model = worker.make_model()\n"
        "try:\n"
        "    model.fit(*worker.batch(0), verbose=0)\n"
        "except ValueError:\n"
        "    traceback.print_exc()\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE), "CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "ClusterCoordinator.create_per_worker_dataset" in run.stderr


# What the docs say, and bad input.


def test_the_table_of_the_docs():
    docs = (HERE.parents[1] / "docs" / "callbacks.md").read_text(encoding="utf-8")
    assert strategy_table.markdown() in docs


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("worker 0 of 2", "TF_CONFIG is not valid JSON"),
        ("[]", "TF_CONFIG has the wrong structure"),
        ('{"task": {"type": "worker", "index": 0}}', "TF_CONFIG has no 'cluster'"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
            "as a 'chief', but the cluster has none",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            "as worker 2, but the cluster has only 2",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}',
            "has no 'index'",
        ),
        (
            '{"cluster": {"worker": "a:1,b:1"}, "task": {"type": "worker", "index": 0}}',
            "a list of addresses for each job",
        ),
        (
            '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
            "the same address twice",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0.7}}',
            "a task index that is not an integer",
        ),
        (
            '{"cluster": {"worker": ["a:99999"]}, "task": {"type": "worker", "index": 0}}',
            "not of the form host:port",
        ),
        (
            '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
            "not of the form host:port",
        ),
    ],
)
def test_a_tf_config_that_cannot_be_right(monkeypatch, config, message):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=message):
        km.enable_multi_worker_fit()


def test_a_tf_config_with_a_number_as_text(monkeypatch):
    """TensorFlow takes it, too."""
    config = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "0"}}'
    monkeypatch.setenv("TF_CONFIG", config)
    check_tf_config()


def test_workers_that_save_at_different_steps(tmp_path):
    """Both are there, so the message does not say that one has died."""
    processes = cluster.start(["worker"] * 2, "worker.py", "disagree", tmp_path)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode for process in processes)
    assert any("saves elsewhere or at other steps" in output for output in outputs)
    assert any("A checkpoint waits for worker:" in output for output in outputs)


def test_two_checkpoints_for_one_directory(tmp_path):
    two = [km.DistributedCheckpoint(tmp_path, save_freq=freq) for freq in (2, 3)]
    with pytest.raises(ValueError, match="two DistributedCheckpoints for one directory"):
        worker.make_model().fit(*trial.data(), verbose=0, callbacks=two)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_callback_used_twice(tmp_path, place):
    callback = trial.all_callbacks(tmp_path)[place]
    x, y = trial.data()
    with pytest.raises(ValueError, match="is twice in the list of callbacks"):
        worker.make_model().fit(x, y, verbose=0, callbacks=[callback, callback])


def test_a_loop_that_forgets_to_begin(tmp_path):
    checkpoint, _, metrics = trial.all_callbacks(tmp_path)
    for callback in (checkpoint, metrics):
        callback.set_model(worker.make_model())
        with pytest.raises(RuntimeError, match="on_train_begin"):
            callback.on_train_batch_begin(0)
    with pytest.raises(RuntimeError, match="on_train_begin"):
        checkpoint.on_train_end()


def test_a_split_model_in_a_strategys_scope(devices):
    split = make_model(tf.distribute.get_strategy(), "`PipelineSplit`", devices)
    with cluster.mirrored(devices[:2]).scope():
        with pytest.raises(ValueError, match=r"Leave `strategy.scope\(\)` out"):
            split.compile("adam", "mse")
        with pytest.raises(ValueError, match=r"Leave `strategy.scope\(\)` out"):
            split.fit(*trial.data(), verbose=0)


def test_two_workers_with_different_models(tmp_path):
    """Their shapes are the same, so TensorFlow does not notice."""
    processes = cluster.start(["worker"] * 2, "worker.py", "different", tmp_path)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert processes[0].returncode != 0
    assert "worker 1 trains a different model than worker 0" in outputs[0]
    assert processes[1].returncode != 0


def test_a_loop_that_forgets_to_end(tmp_path):
    """Files are closed when the process ends, and the save under way is finished."""
    script = (
        "import sys; from pathlib import Path\n"
        "import keras, tensorflow as tf, trial, worker\n"
        "keras.callbacks.CallbackList.on_train_end = lambda self, logs=None: None\n"
        "trial.loop(tf.distribute.get_strategy(), worker.make_model(), Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE), "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, check=True, timeout=120
    )
    assert int(re.search(r"step-(\d+)", km.latest_checkpoint(tmp_path / "checkpoints"))[1]) >= 6
    events = EventAccumulator(str(tmp_path / "logs" / "host")).Reload()
    assert events.Scalars("train/step_time")[-1].step == trial.NUM_STEPS
    assert list((tmp_path / "logs").glob("placement*.json"))
