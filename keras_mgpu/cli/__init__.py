"""The command line, `keras-mgpu`."""
