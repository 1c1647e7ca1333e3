"""No environment variable of the machine changes what the command line prints."""

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    # The first three ask rich for colors without a terminal. The last hides what happens to text
    # that is still in the buffer when the reader closes the pipe.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
