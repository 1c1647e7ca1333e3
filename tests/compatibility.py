"""Runs the tests on every combination of versions that setup.py allows, oldest first.

Each combination gets an environment of its own under `.compatibility`, which is kept.

    python tests/compatibility.py                  # all combinations, all tests
    python tests/compatibility.py 3.10 -- -k state # one Python, with arguments for pytest
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Python, TensorFlow, Keras. The newest of all is what `make test` runs.
COMBINATIONS = (
    ("3.10", "2.19", "3.12"),
    ("3.12", "2.20", "3.13"),
    ("3.13", "2.21", "3.14"),
)
# TensorBoard up to 2.20 imports pkg_resources, which newer releases of setuptools do not have.
NEEDS_PKG_RESOURCES = ("2.19", "2.20")


def find_python(version):
    """An interpreter of this version: on the path, or among those that pyenv manages."""
    managed = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    found = [*managed, shutil.which(f"python{version}")]
    return next((each for each in found if each), None)


def environment(python, tensorflow, keras):
    """Makes the environment if there is none; returns its interpreter."""
    folder = ROOT / ".compatibility" / f"python{python}-tensorflow{tensorflow}-keras{keras}"
    executable, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        interpreter = find_python(python)
        if interpreter is None:
            return None
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        pins = [f"tensorflow=={tensorflow}.*", f"keras=={keras}.*", f"tensorboard~={tensorflow}.0"]
        pins += ["setuptools<81"] if tensorflow in NEEDS_PKG_RESOURCES else []
        install = [executable, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--upgrade", "pip"], check=True)
        subprocess.run([*install, "--editable", f"{ROOT}[dev]", *pins], check=True)
        done.touch()
    return executable


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="*", help="only these versions of Python")
    parser.add_argument("--install", action="store_true", help="make the environments, run nothing")
    own, _, rest = " ".join(sys.argv[1:]).partition("-- ")
    arguments = parser.parse_args(own.split())
    failed = 0
    for combination in COMBINATIONS:
        if arguments.python and combination[0] not in arguments.python:
            continue
        title = "Python {}, TensorFlow {}, Keras {}".format(*combination)
        executable = environment(*combination)
        if executable is None:
            print(f"{title}: left out, there is no Python {combination[0]} on this machine")
            continue
        if arguments.install:
            continue
        names = [executable, "-m", "keras_mgpu.internals.private_names"]
        tests = [executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *rest.split()]
        codes = [subprocess.run(each, cwd=ROOT, check=False).returncode for each in (names, tests)]
        print(f"{title}: {'passed' if not any(codes) else 'FAILED'}", flush=True)
        failed += any(codes)
    return failed


if __name__ == "__main__":
    sys.exit(main())
