import pytest
import tensorflow as tf

from keras_mgpu.monitoring import allocator_source
from keras_mgpu.monitoring.allocator_source import AllocatorSource
from keras_mgpu.monitoring.series import Sample
from keras_mgpu.monitoring.source import Due


@pytest.fixture
def memory(monkeypatch):
    def get_memory_info(device):
        return {"GPU:0": {"current": 3 << 20, "peak": 5 << 20}}[device]

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", get_memory_info)


def test_memory_of_tensors(memory, fake_clock):
    source = AllocatorSource({"GPU:0": "gpu_0"}, ["allocator/used", "allocator/peak", "gpu/power"])
    now = fake_clock.now()
    assert source.sample(Due(kept=False)) == [
        Sample("gpu_0", "allocator/used", now, 3.0),
        Sample("gpu_0", "allocator/peak", now, 5.0),
    ]
    assert source.sample(Due(momentary=False)) == []
    source.close()
    assert source.sample(Due()) == []


def test_without_gpus():
    assert allocator_source.open_source(["allocator/used"]) is None
