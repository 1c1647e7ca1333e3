"""Takes names of people and machines out of texts that are sent to others."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_GONE = "…"


def without_names(text: str) -> str:
    """Removes folders of this machine, the name of its user and its own name from a text."""
    for folder in sorted(set(_folders()), key=len, reverse=True):
        text = text.replace(folder, _GONE)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _GONE, text)
    return text


def _folders() -> Iterator[str]:
    """Folders whose paths may tell who or where somebody is; never the root of all folders."""
    package = Path(__file__).parents[2]
    candidates = [sys.prefix, sys.base_prefix, os.getcwd(), tempfile.gettempdir(), str(package)]
    candidates += [str(Path(path).parent) for path in sys.path if "site-packages" in path]
    candidates.append(os.path.expanduser("~"))
    for path in candidates:
        for each in (path, os.path.realpath(path)):
            if len(Path(each).parts) > 1:
                yield each


def _names() -> Iterator[str]:
    host = socket.gethostname()
    for name in (host, host.partition(".")[0]):
        if name and name != "localhost":
            yield name
    try:
        yield getpass.getuser()
    except (KeyError, OSError, ImportError):  # A user without a name, as in some containers.
        return
