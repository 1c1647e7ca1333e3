"""`keras-mgpu checkpoints`."""

import datetime
import json
import random
import shutil

import keras
import numpy as np
import pytest
import runs

import keras_mgpu as km
from keras_mgpu.checkpoints.store import Store
from keras_mgpu.cli.checkpoints import _age
from keras_mgpu.cli.main import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 3, 4, 7 and 8, and the model as it was at the end."""
    keras.utils.set_random_seed(0)
    directory = tmp_path_factory.mktemp("saved")
    model = runs.make_model()
    checkpoint = km.DistributedCheckpoint(directory, save_freq=3, keep_best=9, monitor="loss")
    model.fit(runs.make_data(), epochs=2, callbacks=[checkpoint], verbose=0, shuffle=False)
    return directory, [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


@pytest.fixture
def damaged(saved, tmp_path):
    directory = tmp_path / "damaged"
    shutil.copytree(saved[0], directory)
    path = directory / Store(str(directory)).find(4).name / "variables.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[random.Random(0).randrange(len(data))] ^= 4
    path.write_bytes(data)
    return directory


def run(capsys, *arguments):
    try:
        code = main(["checkpoints", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_table(saved, capsys):
    code, text, _ = run(capsys, saved[0])
    assert code == 0
    head, *rows = text.splitlines()
    assert head.split() == ["step", "epoch", "values", "size", "age", "intact", "name"]
    steps = [row.split()[0] for row in rows]
    assert steps == ["3", "4", "7", "8"]
    assert " 0 + 3 batches " in rows[0]
    assert all(" yes " in row and "loss " in row for row in rows)


def test_a_table_as_json(saved, capsys):
    _, text, _ = run(capsys, saved[0], "--json")
    rows = json.loads(text)
    assert [(row["step"], row["epoch"], row["batch"]) for row in rows] == [
        (3, 0, 3),
        (4, 1, 0),
        (7, 1, 3),
        (8, 2, 0),
    ]
    assert all(row["damages"] == [] for row in rows)


def test_damage_in_the_table_and_in_verify(damaged, capsys):
    _, text, _ = run(capsys, damaged)
    row = next(line for line in text.splitlines() if line.strip().startswith("4 "))
    assert "no: variables.data-00000-of-00001: checksum does not match" in row
    code, text, _ = run(capsys, damaged, "verify")
    assert code == 1
    assert text.count("intact") == 3
    assert "000002-step-4: variables.data-00000-of-00001: checksum does not match" in text
    assert "000002-step-4: unreadable tensors: " in text


def test_quick_checks_sizes_only(damaged, capsys):
    code, _, _ = run(capsys, damaged, "verify", "--quick")
    assert code == 0


def test_all_intact(saved, capsys):
    code, text, _ = run(capsys, saved[0], "verify")
    assert (code, text.count(": intact")) == (0, 4)


def test_show(saved, capsys):
    _, text, _ = run(capsys, saved[0], "show", 8)
    assert "step 8, epoch 2, batch 0" in text
    assert any(
        line.split() == ["model/dense/kernel", "8x16", "float32"] for line in text.split("\n")
    )
    _, text, _ = run(capsys, saved[0], "show", 8, "--json")
    assert {"key": "optimizer/iteration", "shape": [], "dtype": "int64"} in json.loads(text)


def test_export_is_a_plain_keras_file(saved, capsys, tmp_path):
    path = tmp_path / "model.keras"
    code, text, _ = run(capsys, saved[0], "export", 8, path)
    assert code == 0
    assert "Exported 000004-step-8 to" in text
    model = keras.models.load_model(path)
    # Keras does not write seeds to its files.
    for one, other in zip(saved[1], [*model.weights, *model.optimizer.variables]):
        np.testing.assert_array_equal(one, other.numpy())


def test_export_of_a_split_model_is_the_plain_one(capsys, tmp_path, devices):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(3)])
    split = km.PipelineSplit(model, devices=devices[:2], micro_batches=2)
    split.compile("adam", "mse")
    split.fit(np.ones((4, 8)), np.ones((4, 3)), verbose=0)
    km.save_checkpoint(tmp_path / "c", split)
    run(capsys, tmp_path / "c", "export", 1, tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain) is keras.Sequential
    np.testing.assert_array_equal(
        plain.predict(np.ones((2, 8)), verbose=0), model.predict(np.ones((2, 8)), verbose=0)
    )


def test_export_of_a_model_with_custom_code(capsys, tmp_path):
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3), Twice()])
    model.compile("sgd", "mse")
    km.save_checkpoint(tmp_path / "c", model)
    code, _, error = run(capsys, tmp_path / "c", "export", 0, tmp_path / "model.keras")
    assert code == 2
    assert "needs custom code" in error
    assert "keras_mgpu.restore_checkpoint" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "`show` needs the step"),
        (["show", "5"], "Available steps: 3, 4, 7, 8. Received: step=5"),
        (["export", "8"], "needs a file to write"),
        (["export", "8", "model.h5"], "must end with .keras"),
        (["show", "8", "model.keras"], "`show` takes no file"),
        (["verify", "8"], "`verify` takes no step"),
        (["delete"], "invalid choice: 'delete'"),
    ],
)
def test_bad_use_is_one_line(saved, capsys, arguments, message):
    code, _, error = run(capsys, saved[0], *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_no_such_directory(capsys, tmp_path):
    code, _, error = run(capsys, tmp_path / "missing")
    assert code == 2
    assert "The directory does not exist" in error
    assert run(capsys, tmp_path)[:2] == (0, "There are no checkpoints.\n")


@pytest.mark.parametrize(
    ("seconds", "age"), [(5, "5 s"), (150, "2 min"), (7300, "2 h"), (200000, "2 d"), (-999, "-")]
)
def test_ages(seconds, age):
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    then = now - datetime.timedelta(seconds=seconds)
    assert _age(then.isoformat(), now) == age
