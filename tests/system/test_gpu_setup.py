"""Preparing GPUs where there are none. With GPUs: `tests/simulated/test_prepare_gpus.py`."""

import os

import pytest

import keras_mgpu as km


def test_without_gpus_there_is_nothing_to_prepare(monkeypatch):
    monkeypatch.delenv("TF_GPU_THREAD_MODE", raising=False)
    assert km.prepare_gpus() == []
    assert km.prepare_gpus(memory_growth=True) == []
    assert "TF_GPU_THREAD_MODE" not in os.environ


@pytest.mark.parametrize("value", [1, "yes", None])
def test_bad_input(value):
    with pytest.raises(TypeError, match=r"must be a boolean\. Received: memory_growth="):
        km.prepare_gpus(memory_growth=value)
