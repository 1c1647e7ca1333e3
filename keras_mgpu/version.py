"""The version, where both `setup.py` and the command line can read it without importing TensorFlow."""

__version__ = "0.1.0"
