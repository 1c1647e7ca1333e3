"""What checks have found: the exit code, the page, and the file."""

import json

from keras_mgpu.diagnosis.page import page
from keras_mgpu.diagnosis.report import CheckReport, CheckResult, Finding

FINE = CheckResult("versions", Finding("ok", ("TensorFlow 2.21.0",), {"tensorflow": "2.21.0"}), 0.5)
SLOW = CheckResult("overlap", Finding("warning", ("Hardly any overlap.",)))
WRONG = CheckResult("exactness", Finding("failed", ("word " * 500,)), warnings=("careful",))
HIDDEN = CheckResult("memory", Finding("unknown", ("Only GPUs count their memory.",)))


def report(*results):
    return CheckReport(("GPU:0", "GPU:1"), results)


def test_only_what_failed_is_wrong():
    assert report(FINE, SLOW, HIDDEN).exit_code == 0
    assert report(FINE, WRONG).exit_code == 1


def test_the_page_of_a_machine_where_all_is_fine():
    assert page(report(FINE, FINE)).splitlines() == [
        "Checked GPU:0, GPU:1.",
        "ok       versions",
        "         TensorFlow 2.21.0",
        "ok       versions",
        "         TensorFlow 2.21.0",
        "2 checks: all fine.",
    ]


def test_the_page_of_any_other_machine():
    lines = page(report(FINE, SLOW, WRONG, HIDDEN)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 20  # However long a message is.
    assert lines[-1] == "4 checks: 1 failed, 1 with a warning, 1 unknown."
    assert [line.split()[0] for line in lines if not line.startswith(" ")][1:5] == [
        "ok",
        "warning",
        "failed",
        "unknown",
    ]


def test_many_devices_fit_too():
    many = CheckReport(tuple(f"GPU:{index}" for index in range(16)), (FINE,))
    assert max(map(len, page(many).splitlines())) <= 80


def test_the_file_has_everything():
    found = json.loads(report(FINE, WRONG).to_json())
    assert found["version"] == 1
    assert found["devices"] == ["GPU:0", "GPU:1"]
    first, second = found["checks"]
    assert first == {
        "name": "versions",
        "status": "ok",
        "lines": ["TensorFlow 2.21.0"],
        "data": {"tensorflow": "2.21.0"},
        "seconds": 0.5,
        "warnings": [],
    }
    assert second["warnings"] == ["careful"]
