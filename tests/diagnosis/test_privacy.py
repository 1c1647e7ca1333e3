"""A file that is sent to others names neither people nor machines."""

import getpass
import os
import socket
from pathlib import Path

import pytest

from keras_mgpu.diagnosis import privacy
from keras_mgpu.diagnosis.privacy import without_names


@pytest.fixture
def _somebody(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu17.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody")
    monkeypatch.setenv("HOME", "/home/somebody")


@pytest.mark.usefixtures("_somebody")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /home/somebody/work/train.py, line 3", "in …/work/train.py, line 3"),
        ("/data/users/somebody/model.keras", "/data/users/…/model.keras"),
        ("on gpu17.example.org", "on …"),
        ("gpu17: out of memory", "…: out of memory"),
        ("somebodys and gpu170 are other words", "somebodys and gpu170 are other words"),
        ("/job:localhost/replica:0/task:0/device:GPU:0", None),
        ("Adam is an optimizer", None),
    ],
)
def test_names(text, expected):
    assert without_names(text) == (text if expected is None else expected)


def test_folders_of_this_machine():
    here = Path(privacy.__file__)
    assert str(here.parents[2]) not in without_names(f"File {here}, line 7")
    assert os.getcwd() not in without_names(f"{os.getcwd()}/notes.txt")
    assert "privacy.py, line 7" in without_names(f"File {here}, line 7")


@pytest.mark.usefixtures("_somebody")
def test_a_user_without_a_name(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert without_names("on gpu17") == "on …"
