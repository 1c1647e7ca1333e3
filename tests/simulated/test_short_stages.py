"""Stages that are too short for a GPU, found where a model is timed anyway."""

import pytest
from profiled_split import data, make_split

from keras_mgpu.profiling import short_stages


@pytest.mark.parametrize(("limit", "num_warnings"), [(100.0, 1), (0.0, 0)])
def test_profile_and_measure_tell(devices, monkeypatch, caplog, limit, num_warnings):
    """How long a stage takes here does not matter: the limit is above it, or below."""
    short_stages._log_once.cache_clear()
    monkeypatch.setattr(short_stages, "SHORT_SECONDS", limit)
    split = make_split(devices)
    split.fit(*data(32), verbose=0)

    def said():
        return [r for r in caplog.records if "Launching the kernels" in r.message]

    split.profile(*data(32))
    assert len(said()) == num_warnings
    split.measure(8)
    assert len(said()) == num_warnings
    short_stages._log_once.cache_clear()
    split.measure(8)
    assert len(said()) == 2 * num_warnings
