"""The version, where `setup.py` and the command line can read it without TensorFlow."""

__version__ = "0.1.0"
