"""All callbacks under every strategy, in `fit` and in a custom loop, and the table of the docs."""

import json
import re
import time
from collections import defaultdict

import cluster
import forks
import keras
import numpy as np
import pytest
import strategy_table
import tensorflow as tf
import trial
import worker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km

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


def test_two_workers(tmp_path, plain):
    outputs = cluster.finish(cluster.start(["worker"] * 2, "trial.py", "workers", tmp_path))
    for how in ("fit", "loop"):
        folder = tmp_path / how
        values = [dict(np.load(folder / f"values {index}.npz")) for index in range(2)]
        for key, value in values[0].items():
            np.testing.assert_array_equal(values[1][key], value, err_msg=f"{key} in {how}")
        check_files(folder, values[0], num_workers=2)
    for index in range(2):
        history = json.loads((tmp_path / "fit" / f"history {index}.json").read_text())
        values = dict(np.load(tmp_path / "fit" / f"values {index}.npz"))
        assert_like(plain, history, values)
    assert all("LOGGED" not in output for output in outputs)


def test_keras_alone_fails_with_two_workers(tmp_path):
    """The day this fails, Keras is fixed, and the repair is not needed any more."""
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
    outputs = cluster.outputs_of(processes)
    assert all(process.returncode for process in processes)
    assert any("PerReplica" in output for output in outputs)


# Of each cluster, the process that is killed, the one that must end, and what that one says.
KILLED = {
    "worker 0": (["worker"] * 2, "slow fit", 0, 1),
    "worker 1": (["worker"] * 2, "slow fit", 1, 0),
    "server": (["chief", "worker", "ps"], "slow servers", 2, 0),
}
LAST_WORDS = ("Restart your program", "cannot be reached any more", "UnavailableError")


def test_a_process_that_is_killed_ends_the_others(tmp_path):
    """TensorFlow takes its time to notice; three clusters wait for that at once."""
    clusters = {}
    try:
        for name, (jobs, how, _, _) in KILLED.items():
            (tmp_path / name).mkdir()
            clusters[name] = cluster.start(jobs, "trial.py", how, tmp_path / name)
        for name, (jobs, _, victim, _) in KILLED.items():
            count = jobs.count("chief") or len(jobs)  # Those who take steps.
            wait_until_running(tmp_path / name, count, clusters[name])
            clusters[name][victim].kill()
        for name, (_, _, _, survivor) in KILLED.items():
            [output] = cluster.outputs_of([clusters[name][survivor]])
            assert clusters[name][survivor].returncode != 0, name
            assert any(words in output for words in LAST_WORDS), f"{name}: {output[-3000:]}"
    finally:
        cluster.kill([process for processes in clusters.values() for process in processes])


def wait_until_running(folder, count, processes, timeout=240):
    end = time.monotonic() + timeout
    while len(list(folder.glob("running *"))) < count:
        for process in processes:
            assert process.poll() is None, "".join(process.communicate())[-3000:]
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


def test_parameter_servers_under_fit_are_refused_by_keras(tmp_path):
    """Before any callback is asked: so the docs say it, not a callback."""
    code = (
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
        "sys.stderr.flush()\n"
        "os._exit(0)\n"
    )
    run = forks.run_code(code, tmp_path)
    assert "ClusterCoordinator.create_per_worker_dataset" in run.stderr


def test_workers_that_do_not_fit_together(tmp_path):
    """Two save at different steps; of two others one has another model, with the same shapes."""
    names = ("disagree", "different")
    clusters = {name: cluster.start(["worker"] * 2, "worker.py", name, tmp_path) for name in names}
    outputs = {name: cluster.outputs_of(processes) for name, processes in clusters.items()}
    for processes in clusters.values():
        assert all(process.returncode for process in processes)
    # Both are there, so the message does not say that one has died.
    said = "\n".join(outputs["disagree"])
    assert "saves elsewhere or at other steps" in said
    assert "A checkpoint waits for worker:" in said
    assert "worker 1 trains a different model than worker 0" in outputs["different"][0]


# What the docs say, and bad input.


def test_the_table_of_the_docs():
    docs = (HERE.parents[1] / "docs" / "callbacks.md").read_text(encoding="utf-8")
    assert strategy_table.markdown() in docs


def test_two_checkpoints_for_one_directory(tmp_path):
    two = [km.DistributedCheckpoint(tmp_path, save_freq=freq) for freq in (2, 3)]
    with pytest.raises(ValueError, match="cannot save to the same directory"):
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
        with pytest.raises(ValueError, match=r"Remove `strategy.scope\(\)`"):
            split.compile("adam", "mse")
        with pytest.raises(ValueError, match=r"Remove `strategy.scope\(\)`"):
            split.fit(*trial.data(), verbose=0)


def test_a_loop_that_forgets_to_end(tmp_path):
    """Files are closed when the process ends, and the save under way is finished."""
    code = (
        "from pathlib import Path\n"
        "import keras, tensorflow as tf, trial, worker\n"
        "keras.callbacks.CallbackList.on_train_end = lambda self, logs=None: None\n"
        "trial.loop(tf.distribute.get_strategy(), worker.make_model(), Path(sys.argv[1]))\n"
    )
    forks.run_code(code, tmp_path, tmp_path)
    assert int(re.search(r"step-(\d+)", km.latest_checkpoint(tmp_path / "checkpoints"))[1]) >= 6
    events = EventAccumulator(str(tmp_path / "logs" / "host")).Reload()
    assert events.Scalars("train/step_time")[-1].step == trial.NUM_STEPS
    assert list((tmp_path / "logs").glob("placement*.json"))
