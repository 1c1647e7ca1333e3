"""What README and docs say is done: every block of code and every command is run here."""

import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import metadata
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mgpu as km
from keras_mgpu.cli import main as cli

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))]

CPU_PAGES = [page for page in PAGES if page != "docs/simulator.md"]  # tests/simulated runs that.


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.M | re.S)


def commands(page):
    """Lines of `sh` blocks, and commands within the text."""
    found = [line for block in blocks(page, "sh") for line in block.splitlines()]
    programs = r"keras-mgpu|make|pip|tensorboard|\.venv/bin/python"
    found += re.findall(rf"`((?:{programs}) [^`\n]*)`", read(page))
    stripped = [line.partition("#")[0].strip() for line in found]
    return [line for line in dict.fromkeys(stripped) if line]


def make_model():
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.Sequential(
                [keras.Input((16,)), keras.layers.Dense(8, activation="relu")], name="encoder"
            ),
            keras.layers.Dense(8, activation="relu", name="hidden_1"),
            keras.layers.Dense(8, activation="relu", name="hidden_2"),
            keras.layers.Dense(3, activation="softmax", name="head"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def names_of_a_reader():
    """What the pages take for granted: a model, data, and a step of one's own."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((256, 16)).astype("float32"), rng.integers(0, 3, 256)
    model = make_model()
    model.optimizer.build(model.trainable_variables)

    def step(x, y):
        return model.train_on_batch(x, y)

    return {
        "__name__": "reader",
        "km": km,
        "keras_mgpu": km,
        "keras": keras,
        "np": np,
        "tf": tf,
        "PipelineSplit": km.PipelineSplit,
        "make_model": make_model,
        "model": model,
        "x": x,
        "y": y,
        "x_valid": x[:64],
        "y_valid": y[:64],
        "data": km.resumable(x, y, batch_size=32, seed=0),
        "epochs": 2,
        "step": step,
        "train_step": step,
    }


def split_model():
    split = km.PipelineSplit(make_model(), km.logical_devices(2), cuts=["encoder"])
    split.compile("adam", "sparse_categorical_crossentropy")
    return split


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in CPU_PAGES if blocks(page, "python")])
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_of_a_reader()
    for code in blocks(page, "python"):
        if page == "docs/api.md":  # Each example there stands by itself.
            names = names_of_a_reader()
        if "assert_placement" in code or "split.profile" in code:
            names["split"] = names["model"] = split_model()
        text = code.replace("GPU:", "CPU:").replace("/shared/", f"{tmp_path}/")
        exec(compile(text, page, "exec"), names)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A folder with what a reader has after a run: checkpoints and logs."""
    folder = tmp_path_factory.mktemp("reader")
    model = make_model()
    x, y = np.ones((64, 16), "float32"), np.zeros(64)
    callbacks = [
        km.DistributedCheckpoint(folder / "checkpoints"),
        km.DevicePlacementLogger(folder / "logs", verbose=0),
    ]
    model.fit(x, y, verbose=0, callbacks=callbacks)
    for name in ("before.json", "after.json"):
        shutil.copy(folder / "logs" / "placement.json", folder / name)
    return folder


EVERY_COMMAND = list(dict.fromkeys(command for page in PAGES for command in commands(page)))


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_command_runs(command, reader, monkeypatch):
    program, *arguments = shlex.split(command)
    if program == "make":  # What targets do is run by other tests, or by whoever runs these.
        subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)
    elif program == "pip":
        check_install(arguments)
    elif program == "tensorboard":
        check_tensorboard(reader)
    elif program == ".venv/bin/python":
        check_script(*arguments)
    elif arguments[0] == "check":  # Run by its own tests; takes long, and needs GPUs.
        assert cli._parser().parse_args(arguments).run
    else:
        steps = {"DIR": "checkpoints", "700": "2"}
        arguments = [steps.get(each, each) for each in arguments]
        monkeypatch.chdir(reader)
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        [script] = metadata.entry_points(group="console_scripts", name=program)
        assert not script.load()()


def check_install(arguments):
    """Whatever is in brackets is an extra that there is."""
    assert arguments[0] == "install"
    extras = re.findall(r"\[(\w+)\]", " ".join(arguments))
    assert set(extras) <= set(metadata.metadata("keras-mgpu").get_all("Provides-Extra"))


def check_script(path, *arguments):
    """Examples are run by their own tests, benchmarks by who wants to know."""
    assert (ROOT / path).is_file()
    if path.startswith("benchmarks/"):
        assert all((ROOT / "benchmarks" / name / "benchmark.py").is_file() for name in arguments)


def check_tensorboard(folder):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--port", str(port)],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(2400):  # Four minutes, on a machine that has other things to do.
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs") as answer:
                    assert b"placement" in answer.read()
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("TensorBoard did not answer")
    finally:
        server.kill()
        server.wait()


def test_there_are_commands():
    assert len(EVERY_COMMAND) > 20


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", read(page)):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_the_api_page_is_made_from_the_docstrings():
    module = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
    assert read("docs/api.md") == module["text"]()
    told = {name for names in module["GROUPS"].values() for name in names}
    assert told == {name for name in km.__all__ if not name.startswith("__")}
