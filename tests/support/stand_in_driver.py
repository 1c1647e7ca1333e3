"""A stand-in for NVIDIA's driver library with its real ABI, which NVIDIA's own package calls."""

import ctypes

import cluster


class StandInDriver:
    """The library in this process, at the time that a test wants.

    Args:
        folder: Where it was compiled to.
    """

    def __init__(self, folder):
        self._library = ctypes.CDLL(str(folder / cluster.DRIVER_NAME))
        for name in ("test_set_time", "test_set_clock"):
            getattr(self._library, name).argtypes = [ctypes.c_double]
        self.set_clock(0.0)

    def install(self, monkeypatch, num_gpus=8, visible=None, **settings):
        """Lets NVIDIA's package use it, as if it had found it in the library path.

        Args:
            monkeypatch: Pytest's fixture.
            num_gpus: How many GPUs it has.
            visible: CUDA_VISIBLE_DEVICES.
            settings: What `driver.c` says of KERAS_MGPU_TEST_…, such as `lost=0.4`.
        """
        import pynvml

        monkeypatch.setattr(pynvml, "nvmlLib", self._library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("KERAS_MGPU_TEST_GPUS", str(num_gpus))
        for name, value in settings.items():
            monkeypatch.setenv(f"KERAS_MGPU_TEST_{name.upper()}", str(value))
        return self

    def set_time(self, seconds):
        """What time it is; 0 for the system's."""
        self._library.test_set_time(seconds)

    def set_clock(self, seconds):
        """What the system's clock was set by, which the rings go by."""
        self._library.test_set_clock(seconds)
