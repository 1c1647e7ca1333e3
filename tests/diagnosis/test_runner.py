"""Checks do not disturb one another."""

import logging
import threading
import warnings

from keras_mgpu.diagnosis.report import Finding
from keras_mgpu.diagnosis.runner import run_checks

FINE = Finding("ok", ("As it should be.",))


def statuses(results):
    return {each.name: each.status for each in results}


def test_one_that_raises_is_reported_and_the_rest_still_run():
    def raises():
        raise ValueError("no such kernel")

    begun = []
    checks = {"first": lambda: FINE, "second": raises, "third": lambda: FINE}
    results = run_checks(checks, max_seconds=60, on_begin=begun.append)
    assert statuses(results) == {"first": "ok", "second": "failed", "third": "ok"}
    assert begun == ["first", "second", "third"]
    (line,) = results[1].finding.lines
    assert line == "ValueError: no such kernel"
    assert "in raises" in results[1].finding.data["traceback"]


def test_one_that_hangs_is_given_up_and_the_rest_is_not_run():
    for_ever = threading.Event()

    def hangs():
        for_ever.wait()
        return FINE

    results = run_checks({"first": hangs, "second": lambda: FINE}, max_seconds=0.05)
    for_ever.set()
    for thread in threading.enumerate():
        if thread.name == "keras-mgpu check":
            thread.join()
    assert statuses(results) == {"first": "failed", "second": "unknown"}
    assert [each.has_ended for each in results] == [False, True]
    assert "Not done after" in results[0].finding.lines[0]
    assert results[1].finding.lines == ("Not run.",)


def test_warnings_are_kept_and_no_error(caplog):
    def warns():
        logging.getLogger("keras_mgpu").warning("stage %d runs without XLA", 1)
        for _ in range(3):
            warnings.warn("batch normalization sees micro-batches", stacklevel=2)
        return FINE

    (result,) = run_checks({"first": warns}, max_seconds=60)
    assert result.status == "ok"
    assert result.warnings == ("batch normalization sees micro-batches", "stage 1 runs without XLA")
    assert not caplog.records
    logging.getLogger("keras_mgpu").warning("later")
    assert caplog.messages == ["later"]
