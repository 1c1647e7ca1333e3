"""Makes `kernels.pb`: the kernels that a GPU has in the wheel `tensorflow`, for simulated GPUs.

    python tests/simgpu/make_kernel_list.py .venv/bin/python .simulator/bin/python

The wheel `tensorflow` registers its kernels for GPUs even where there is no GPU. The list holds
those that `tensorflow-cpu` lacks and has a CPU kernel for, each with its types and with the
arguments that lie in host memory. So the placer decides as it does on a machine with GPUs.
`kernels.json` says which release the list was made from; a test says when it is out of date.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIST, ORIGIN = HERE / "kernels.pb", HERE / "kernels.json"
# Kernels for DEFAULT serve GPUs as well.
SERVE_GPUS = ("GPU", "DEFAULT")
_DUMP = (
    "import sys; from tensorflow.python.framework import kernels;"
    "sys.stdout.buffer.write(kernels.get_all_registered_kernels().SerializeToString())"
)


def key_of(kernel):
    """What tells a registration from another."""
    constraints = [(each.name, tuple(each.allowed_values.list.type)) for each in kernel.constraint]
    host_arguments = tuple(sorted(kernel.host_memory_arg))
    own = (kernel.op, kernel.device_type, kernel.label, kernel.priority)
    return (*own, tuple(sorted(constraints)), host_arguments)


def for_gpus(kernels):
    """The registrations, by key, that a GPU can use and that a CPU has a kernel for as well."""
    on_cpus = {kernel.op for kernel in kernels if kernel.device_type == "CPU"}
    return {
        key_of(kernel): kernel
        for kernel in kernels
        if kernel.device_type in SERVE_GPUS and kernel.op in on_cpus
    }


def hash_of(keys):
    return hashlib.sha256(repr(sorted(keys)).encode()).hexdigest()


def registered_by(python):
    """All kernels of the wheel that is installed for an interpreter."""
    from tensorflow.core.framework import kernel_def_pb2

    dumped = subprocess.run([python, "-c", _DUMP], check=True, stdout=subprocess.PIPE).stdout
    return kernel_def_pb2.KernelList.FromString(dumped).kernel


def version_of(python):
    """The release of TensorFlow that is installed for an interpreter."""
    command = [python, "-c", "import tensorflow; print(tensorflow.__version__)"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(ordinary_python, cpu_python):
    from tensorflow.core.framework import kernel_def_pb2

    version = version_of(ordinary_python)
    if version_of(cpu_python) != version:
        raise SystemExit(f"Both wheels must be of one release, {version} or another.")
    wanted, present = for_gpus(registered_by(ordinary_python)), registered_by(cpu_python)
    on_cpus = {kernel.op for kernel in present if kernel.device_type == "CPU"}
    lacking = wanted.keys() - {key_of(kernel) for kernel in present}
    kernels = [wanted[key] for key in sorted(lacking) if key[0] in on_cpus]
    LIST.write_bytes(kernel_def_pb2.KernelList(kernel=kernels).SerializeToString())
    origin = {"tensorflow": version, "kernels_for_gpus": hash_of(wanted)}
    ORIGIN.write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    print(f"{len(kernels)} kernels of {len({kernel.op for kernel in kernels})} ops")


if __name__ == "__main__":
    main(*sys.argv[1:])
