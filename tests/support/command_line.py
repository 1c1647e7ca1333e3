"""Runs the command line, in this process or in one of its own."""

import subprocess
import sys

import pytest

from keras_mgpu.cli.main import main

PROGRAM = "import sys; from keras_mgpu.cli.main import main; sys.exit(main())"


def run(*args, code=PROGRAM, **options):
    """Runs the program in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, **options
    )


def refused(capsys, *args):
    """Returns the message about a usage error, which is one line on standard error."""
    with pytest.raises(SystemExit) as exit_:
        main(list(args))
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err
