"""The progress of reading."""

import logging

from keras_mgpu.checkpoints import progress


def test_a_line_is_logged_if_reading_takes_long(monkeypatch, caplog):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "keras_mgpu"):
        with progress.progress_of("Reading x", 200) as advance:
            advance(50)
            advance(150)
    assert [record.getMessage() for record in caplog.records] == [
        "Reading x: 25 %",
        "Reading x: 100 %",
    ]


def test_nothing_is_logged_otherwise(caplog):
    with progress.progress_of("Reading x", 0) as advance:
        advance(0)
    assert caplog.records == []


def test_a_bar_in_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with progress.progress_of("Reading x", 10) as advance:
        advance(4)
        bar = advance.__self__._bar
        assert bar.live.is_started
        assert bar.tasks[0].completed == 4
    assert not bar.live.is_started
