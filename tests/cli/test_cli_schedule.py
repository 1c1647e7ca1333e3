"""`keras-mgpu schedule`."""

import json
import os
import sys

import pytest
from command_line import refused, run

from keras_mgpu.blueprint import named_schedules, timeline
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.cli.main import main
from keras_mgpu.cli.schedule import COLORS


def test_schedule(capsys):
    assert main(["schedule", "1f1b", "--stages", "4", "--micro-batches", "5"]) == 0
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
        "ideal      37.5% = (devices - 1) / (micro-batches + devices - 1) = 3/8"
        ", for gpipe and 1f1b",
        "peak live  4, 3, 2, 1 micro-batches per stage",
    ]


def test_schedule_has_defaults(capsys):
    main(["schedule", "gpipe"])
    assert "gpipe (stages: 4, micro-batches: 8)" in capsys.readouterr().out


def test_schedule_json(capsys):
    assert main(["schedule", "gpipe", "--stages", "2", "--micro-batches", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bubble"] == pytest.approx(1 / 4)
    assert found["ideal_bubble"] == pytest.approx(1 / 4)
    assert found["makespan"] == 8
    assert found["peak_live"] == [3, 3]
    made = named_schedules.gpipe(2, 3)
    assert Schedule.from_json(json.dumps(found["schedule"])) == made
    assert timeline.Timeline.from_json(json.dumps(found["timeline"])) == timeline.replay(made)


@pytest.mark.parametrize("option", ["--stages", "--micro-batches"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "2.5", ""])
def test_counts_must_be_positive(capsys, option, value):
    message = refused(capsys, "schedule", "1f1b", f"{option}={value}")
    assert f"argument {option}: must be a positive integer. Received: {value!r}" in message


def test_unknown_schedule(capsys):
    message = refused(capsys, "schedule", "2f2b")
    assert [word for word in ("2f2b", "gpipe", "1f1b") if word not in message] == []


def test_errors_of_the_library_are_usage_errors(capsys, monkeypatch):
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
        main(["schedule", "broken"])


def test_a_terminal_gets_colors(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["schedule", "1f1b"])
    out = capsys.readouterr().out
    assert "\x1b[36mF0\x1b[0m" in out
    assert "\x1b[32mB0\x1b[0m" in out
    assert (COLORS["F"], COLORS["B"]) == ("cyan", "green")


def test_interleaved_stages_share_devices(capsys):
    main(["schedule", "interleaved", "--stages", "4", "--micro-batches", "4"])
    drawn = capsys.readouterr().out
    assert "lane 1 " in drawn
    assert "lane 2 " not in drawn
    assert "3B3" in drawn


def test_recomputation_is_drawn(capsys):
    main(["schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--recompute"])
    assert "R1" in capsys.readouterr().out


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
