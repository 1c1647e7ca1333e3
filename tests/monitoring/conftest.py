from gpu_fixtures import driver, driver_folder, fake_clock

__all__ = ["driver", "driver_folder", "fake_clock"]
