"""Builds the plug-in with the system's C++ compiler, once for each version of its sources.

    python tests/simgpu/build.py    # prints the path of the library

The library is kept under `.simulator`, named by a hash of the sources and the version of
TensorFlow whose headers it was built with.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "plugin"
BUILT = HERE.parents[1] / ".simulator" / "plugin"
FLAGS = [
    *("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-access-control", "-w"),
    # As TensorFlow's wheels are built: else objects differ in size between the two.
    *("-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64", "-DNDEBUG"),
]


def compiler():
    """The path of a C++ compiler, or `None`."""
    return shutil.which("g++") or shutil.which("c++")


def tensorflow_version():
    """The version of `tensorflow-cpu`, or `None` where another wheel is installed."""
    try:
        return metadata.version("tensorflow-cpu")
    except metadata.PackageNotFoundError:
        return None


def library():
    """The path of the plug-in, which is built if there is none for these sources."""
    version = tensorflow_version()
    if version is None:
        raise RuntimeError(
            "Simulated GPUs need the wheel `tensorflow-cpu`: the wheel `tensorflow` has kernels "
            "of its own under the name GPU. Run `make simulate`, which has an environment for it."
        )
    path = BUILT / f"simgpu-{_hash(version)}.so"
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several test processes start at the same time.
        if not path.exists():
            _compile(path)
    return path


def _hash(version):
    digest = hashlib.sha256(" ".join([version, *FLAGS]).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(path):
    if compiler() is None:
        raise RuntimeError("Simulated GPUs are built from source. Install a C++ compiler (`g++`).")
    tensorflow = util.find_spec("tensorflow").submodule_search_locations[0]
    unfinished = path.with_suffix(f".{os.getpid()}")
    command = [compiler(), *FLAGS, f"-I{tensorflow}/include", *map(str, SOURCES.glob("*.cc"))]
    # Where it is need not be said: whoever loads the plug-in has loaded TensorFlow.
    command += [f"-L{tensorflow}", "-l:libtensorflow_framework.so.2", "-o", str(unfinished)]
    try:
        subprocess.run(command, check=True)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    print(library())
