"""`keras-mgpu check`, on logical CPU devices. On GPUs: `tests/simulated/test_check.py`."""

import getpass
import json
import os
import re
import socket
from pathlib import Path

import pytest
from command_line import refused, run

import keras_mgpu
from keras_mgpu.cli import check
from keras_mgpu.cli.main import main
from keras_mgpu.diagnosis.report import CheckReport, CheckResult, Finding

# The programs below run in folders of their own, and see no GPU even where there is one.
ROOT = Path(keras_mgpu.__file__).parents[1]
ALONE = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A machine that was checked: the page, and what is in the file."""
    folder = tmp_path_factory.mktemp("checked")
    done = run("check", "--devices", "CPU:0,CPU:1", cwd=folder, env=ALONE)
    assert done.returncode == 0, done.stderr
    return done, (folder / "keras-mgpu-check.json").read_text(encoding="utf-8")


def test_the_page(checked):
    done, _ = checked
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60
    assert lines[0] == "Checked CPU:0, CPU:1."
    assert "keras-mgpu-check.json" in done.stdout
    assert "Checking: exactness: transformer" in done.stderr


def test_what_cannot_be_known_here_is_not_made_up(checked):
    _, text = checked
    found = {each["name"]: each for each in json.loads(text)["checks"]}
    assert {name: each["status"] for name, each in found.items()} == {
        "versions": "ok",
        "devices": "ok",
        "copies": "unknown",
        "exactness: transformer": "ok",
        "exactness: convolution": "ok",
        "ops on the CPU": "unknown",
        "what crosses in a step": "ok",
        "memory": "unknown",
        "overlap": "unknown",
    }
    assert [each["peak"] for each in found["memory"]["data"]["devices"]] == [None, None]
    assert found["overlap"]["data"]["kernels_ran"] == {}


def test_the_file_has_what_was_measured(checked):
    _, text = checked
    found = {each["name"]: each["data"] for each in json.loads(text)["checks"]}
    assert set(found["versions"]) >= {"tensorflow", "keras", "python", "driver", "cuda"}
    differences = found["exactness: transformer"]["against the CPU, float32"]
    assert set(differences) >= {"loss", "gradients", "weights"}
    assert 0 < differences["gradients"] < 1e-4
    assert found["overlap"]["predicted_seconds"] > 0
    edges = {(each["source"], each["target"]) for each in found["what crosses in a step"]["edges"]}
    assert edges >= {("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")}


def test_the_file_names_nobody(checked):
    _, text = checked
    for name in (getpass.getuser(), socket.gethostname(), str(Path.home()), os.getcwd()):
        assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text), name


def test_a_machine_without_gpus(tmp_path):
    done = run("check", cwd=tmp_path, env=ALONE)
    assert done.returncode == 1
    assert done.stdout.startswith("TensorFlow sees no GPU on this machine.")
    assert done.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "CPU:0,GPU:77"], "No such device: /GPU:77"),
        (["--devices", "first"], "A device must have a name such as"),
        (["--devices", ""], "A device must have a name such as"),
        (["--devices", "CPU:0,"], "A device must have a name such as"),
        (["--devices", "CPU:99999"], "at most 64 CPU devices"),
        (["--json", "{folder}/missing/report.json"], "Cannot write the report"),
        (["--json", "{folder}"], "Cannot write the report"),
        (["GPU:0"], "unrecognized arguments"),
    ],
)
def test_bad_use(capsys, tmp_path, arguments, message):
    arguments = [each.format(folder=tmp_path) for each in arguments]
    if "--json" not in arguments:
        arguments += ["--json", str(tmp_path / "report.json")]
    assert message in refused(capsys, "check", *arguments)
    assert not list(tmp_path.iterdir())


WRONG = CheckResult("exactness", Finding("failed", ("Off by one.",)))
HUNG = CheckResult("overlap", Finding("failed", ("Not done.",)), has_ended=False)


@pytest.fixture
def found(monkeypatch):
    """Lets the checks find something."""

    def find(*results):
        report = CheckReport(("GPU:0", "GPU:1"), results)
        monkeypatch.setattr("keras_mgpu.diagnosis.check.check_machine", lambda *args: report)

    return find


def test_something_is_wrong(capsys, tmp_path, found):
    found(WRONG)
    path = tmp_path / "report.json"
    path.write_text("of last time")
    assert main(["check", "--json", str(path)]) == 1
    assert "Off by one." in capsys.readouterr().out
    assert json.loads(path.read_text())["checks"][0]["status"] == "failed"


def test_a_check_that_hangs_does_not_keep_the_program_from_ending(
    capsys, tmp_path, found, monkeypatch
):
    def leave(code):
        raise SystemExit(code)

    found(HUNG)
    monkeypatch.setattr(check.os, "_exit", leave)
    with pytest.raises(SystemExit) as left:
        main(["check", "--json", str(tmp_path / "report.json")])
    assert left.value.code == 1
    assert "Not done." in capsys.readouterr().out
    assert (tmp_path / "report.json").is_file()
