"""The command line: what it prints, how it fails, and what it does not load."""

import json
import os
import subprocess
import sys
import types

import pytest

from keras_mgpu.blueprint import named_schedules, timeline
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.cli import main as cli


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    # The first three ask rich for colours though nobody looks; the last hides what happens to text
    # that is still in the buffer when the reader goes away.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def three_devices(monkeypatch):
    """Puts devices in place of the real ones, which differ from machine to machine."""

    def device(name, kind, description, memory_bytes):
        return types.SimpleNamespace(
            name=name, kind=kind, description=description, memory_bytes=memory_bytes
        )

    module = types.ModuleType("keras_mgpu.system.devices")
    module.describe = lambda: [
        device("/CPU:0", "CPU", "", None),
        device("/GPU:0", "GPU", "Card [red]of[/red] a long name " + "x" * 100, 16 * 2**30),
        device("/GPU:1", "GPU", "Card", 24 * 2**30),
    ]
    monkeypatch.setitem(sys.modules, "keras_mgpu.system.devices", module)


def run(
    *args, code="import sys; from keras_mgpu.cli.main import main; sys.exit(main())", **options
):
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, **options
    )


def refused(capsys, *args):
    """Returns the message about bad use, which is one line on standard error."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(list(args))
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def test_schedule(capsys):
    assert cli.main(["schedule", "1f1b", "--stages", "4", "--micro-batches", "5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "1f1b (stages: 4, micro-batches: 5)",
        "",
        "lane 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 .  B2 .  B3 .  B4",
        "lane 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4 .",
        "lane 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4 .  .",
        "lane 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .  .",
        "",
        "bubble     37.5%",
        "ideal      37.5% = (devices - 1) / (micro-batches + devices - 1) = 3/8, of gpipe and 1f1b",
        "peak live  4, 3, 2, 1 micro-batches a stage",
    ]


def test_schedule_has_defaults(capsys):
    cli.main(["schedule", "gpipe"])
    assert "gpipe (stages: 4, micro-batches: 8)" in capsys.readouterr().out


def test_schedule_json(capsys):
    assert cli.main(["schedule", "gpipe", "--stages", "2", "--micro-batches", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bubble"] == pytest.approx(1 / 4)
    assert found["ideal_bubble"] == pytest.approx(1 / 4)
    assert found["makespan"] == 8
    assert found["peak_live"] == [3, 3]
    made = named_schedules.gpipe(2, 3)
    assert Schedule.from_json(json.dumps(found["schedule"])) == made
    assert timeline.Timeline.from_json(json.dumps(found["timeline"])) == timeline.replay(made)


def test_devices(capsys, three_devices):
    assert cli.main(["devices"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "name    kind    memory  description",
        "/CPU:0  CPU          -",
        "/GPU:0  GPU   16.0 GiB  Card [red]of[/red] a long name " + "x" * 100,
        "/GPU:1  GPU   24.0 GiB  Card",
    ]


def test_devices_json(capsys, three_devices):
    assert cli.main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [device["name"] for device in found] == ["/CPU:0", "/GPU:0", "/GPU:1"]
    assert found[2] == {
        "name": "/GPU:1",
        "kind": "GPU",
        "description": "Card",
        "memory_bytes": 24 * 2**30,
    }
    assert found[0]["memory_bytes"] is None


def test_real_devices():
    found = json.loads(run("devices", "--json").stdout)
    assert "/CPU:0" in [device["name"] for device in found]
    assert {"CPU"} <= {device["kind"] for device in found}


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
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
            cli.main(args)
        assert exit_.value.code == 0
        out = capsys.readouterr().out
        assert [word for word in words if word not in out] == []


@pytest.mark.parametrize("option", ["--stages", "--micro-batches"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "2.5", ""])
def test_counts_must_be_positive(capsys, option, value):
    message = refused(capsys, "schedule", "1f1b", f"{option}={value}")
    assert f"argument {option}: must be a whole number from 1 on. Received: {value!r}" in message


def test_unknown_schedule(capsys):
    message = refused(capsys, "schedule", "2f2b")
    assert [word for word in ("2f2b", "gpipe", "1f1b") if word not in message] == []


@pytest.mark.parametrize("args", [[], ["schedule"], ["train"], ["devices", "x"], ["--jso"]])
def test_bad_use(capsys, args):
    assert refused(capsys, *args).startswith("keras-mgpu")


def test_errors_of_the_library_are_bad_use_too(capsys, monkeypatch):
    def broken(num_stages, num_micro_batches):
        return Schedule("broken", num_stages, num_micro_batches, ())

    monkeypatch.setitem(named_schedules.SCHEDULES, "broken", broken)
    message = refused(capsys, "schedule", "broken", "--stages", "1", "--micro-batches", "1")
    assert "The schedule 'broken' is missing ops" in message
    assert "missing [0F0]" in message


def test_other_errors_are_not_hidden(monkeypatch):
    def broken(num_stages, num_micro_batches):
        raise RuntimeError("a bug")

    monkeypatch.setitem(named_schedules.SCHEDULES, "broken", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["schedule", "broken"])


def test_bad_use_of_the_program():
    done = run("schedule", "1f1b", "--stages", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_wide_drawing_is_whole_and_plain_when_piped():
    done = run("schedule", "1f1b", "--stages", "3", "--micro-batches", "70", env=narrow_terminal())
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    drawn = timeline.replay(named_schedules.one_f_one_b(3, 70)).draw()
    assert max(map(len, drawn.splitlines())) > 400
    assert drawn in done.stdout


def narrow_terminal():
    return {**os.environ, "COLUMNS": "40", "TERM": "xterm-256color"}


def test_terminal_gets_colours(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.main(["schedule", "1f1b"])
    out = capsys.readouterr().out
    assert "\x1b[36mF0\x1b[0m" in out
    assert "\x1b[32mB0\x1b[0m" in out


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


def test_help_comes_at_once():
    """In time of its own: the clock would also count what else a busy machine does."""

    def seconds():
        begin = os.times()
        assert run("--help").returncode == 0
        end = os.times()
        return end.children_user + end.children_system - begin.children_user - begin.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_interleaved_stages_share_devices(capsys):
    cli.main(["schedule", "interleaved", "--stages", "4", "--micro-batches", "4"])
    drawn = capsys.readouterr().out
    assert "lane 1 " in drawn
    assert "lane 2 " not in drawn
    assert "3B3" in drawn


def test_recomputation_is_drawn(capsys):
    cli.main(["schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--recompute"])
    assert "R1" in capsys.readouterr().out
