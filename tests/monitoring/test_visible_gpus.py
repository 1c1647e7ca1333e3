import pytest

from keras_mgpu.monitoring.visible_gpus import handles_of


@pytest.fixture
def nvml(driver, monkeypatch):
    import pynvml

    driver.install(monkeypatch, num_gpus=5)
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


def temperatures(nvml, buses=(), **environment):
    """Which GPUs they are: GPU i of the stand-in has 40 + i degrees."""
    handles = handles_of(nvml, buses, environment)
    return [nvml.nvmlDeviceGetTemperature(each, nvml.NVML_TEMPERATURE_GPU) for each in handles]


def test_all_of_them(nvml):
    assert temperatures(nvml) == [40, 41, 42, 43, 44]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", [41]),
        ("2,0", [42, 40]),
        (" 2, 0 ", [42, 40]),
        ("GPU-00000aa1", [41]),
        ("GPU-00000aa", []),  # The beginning of several.
        ("1,-1,2", [41]),
        ("", []),
        ("MIG-part-2", [44]),
        ("9", []),
    ],
)
def test_as_cuda_reads_the_variable(nvml, visible, expected):
    assert temperatures(nvml, CUDA_VISIBLE_DEVICES=visible) == expected


def test_bus_ids_of_tensorflow_come_first(nvml):
    buses = ["0000:03:00.0", "0000:01:00.0"]
    assert temperatures(nvml, buses) == [43, 41]
    assert temperatures(nvml, buses, CUDA_VISIBLE_DEVICES="0,2") == [43, 41]


def test_parts_of_one_gpu_are_not_found_by_its_bus(nvml):
    found = temperatures(nvml, ["0000:00:00.0"], CUDA_VISIBLE_DEVICES="MIG-part-1,MIG-part-2")
    assert found == [44, 44]
