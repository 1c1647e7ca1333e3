"""The command line as a whole: help, usage errors, pipes, and what it does not load."""

import os
import subprocess
import sys

import pytest
from command_line import refused, run

from keras_mgpu.cli.main import main


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    name, version = capsys.readouterr().out.split()
    assert name == "keras-mgpu"
    assert version[0].isdigit()


def test_help_names_commands_and_schedules(capsys):
    for args, words in (
        (["--help"], ["devices", "schedule", "--version"]),
        (["schedule", "--help"], ["gpipe", "1f1b", "--stages", "--micro-batches", "--json"]),
        (["devices", "--help"], ["--json"]),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(args)
        assert exit_.value.code == 0
        out = capsys.readouterr().out
        assert [word for word in words if word not in out] == []


@pytest.mark.parametrize("args", [[], ["schedule"], ["train"], ["devices", "x"], ["--jso"]])
def test_bad_use(capsys, args):
    assert refused(capsys, *args).startswith("keras-mgpu")


def test_bad_use_of_the_program():
    done = run("schedule", "1f1b", "--stages", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_module_is_the_command():
    command = [sys.executable, "-m", "keras_mgpu", "schedule", "gpipe", "--stages", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "gpipe (stages: 1, micro-batches: 8)" in done.stdout
    command[-1] = "0"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("keras-mgpu schedule: error: ")


def test_reader_that_goes_away():
    # More than a pipe holds, so that the write must fail.
    args = ["schedule", "gpipe", "--stages", "40", "--micro-batches", "200"]
    command = [sys.executable, "-m", "keras_mgpu", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_reader_that_was_never_there():
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "keras_mgpu", "schedule", "gpipe"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 0


LOADED = """
import sys
from keras_mgpu.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"tensorflow", "keras", "numpy", "rich"} & set(sys.modules)
sys.stderr.write(" ".join(sorted(heavy)))
"""


@pytest.mark.parametrize(
    ("args", "heavy"),
    [
        (["--help"], ""),
        (["schedule", "--help"], ""),
        (["devices", "--help"], ""),
        (["--version"], ""),
        (["schedule", "1f1b", "--json"], ""),
        (["schedule", "1f1b"], "rich"),
    ],
)
def test_nothing_heavy_is_loaded_in_vain(args, heavy):
    assert run(*args, code=LOADED).stderr == heavy
