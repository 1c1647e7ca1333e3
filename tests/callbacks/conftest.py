from gpu_fixtures import driver, driver_folder, fake_clock
from profiled_split import missing_ops

__all__ = ["driver", "driver_folder", "fake_clock", "missing_ops"]
