"""What the stand-in for the driver, NVIDIA's package and the library must agree on."""

import ctypes
import inspect
import re
import subprocess

import cluster

from keras_mgpu.monitoring import nvml_readers, nvml_rings, nvml_source, visible_gpus


def test_real_symbols_only():
    """Every name of the driver's library that is used is one of NVIDIA's package."""
    import pynvml

    used = set(nvml_readers.GPM_METRICS.values())
    for module in (nvml_readers, nvml_rings, nvml_source, visible_gpus):
        names = set(re.findall(r"\b_?nvml\.(\w+)", inspect.getsource(module)))
        assert len(names) > 3
        used |= names
    assert [name for name in sorted(used) if not hasattr(pynvml, name)] == []
    source = (cluster.HERE / "nvml" / "driver.c").read_text()
    functions = set(re.findall(r"^(?:nvmlReturn_t|const char \*) ?(nvml\w+)\(", source, re.M))
    text = inspect.getsource(pynvml)
    assert [name for name in sorted(functions) if f'"{name}"' not in text] == []
    assert len(functions) > 20


def test_structures_are_the_drivers(tmp_path):
    """The stand-in's structures are as large as those that NVIDIA's package hands over."""
    import pynvml

    sizes = {
        "sample_t": pynvml.c_nvmlSample_t,
        "memory_t": pynvml.c_nvmlMemory_t,
        "process_t": pynvml.c_nvmlProcessInfo_v2_t,
        "field_t": pynvml.c_nvmlFieldValue_t,
        "gpm_support_t": pynvml.c_nvmlGpmSupport_t,
        "gpm_metric_t": pynvml.c_nvmlGpmMetric_t,
        "utilization_t": pynvml.c_nvmlUtilization_t,
    }
    printing = "\n".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in sizes)
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    include = f'#include "{cluster.HERE / "nvml" / "driver.c"}"'
    source.write_text(f"{include}\nint main(void) {{ {printing} return 0; }}\n")
    subprocess.run(["cc", str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found = dict(line.split() for line in output.splitlines())
    assert {name: int(size) for name, size in found.items()} == {
        name: ctypes.sizeof(structure) for name, structure in sizes.items()
    }
