"""Runs the command `keras-mgpu` as `python -m keras_mgpu`."""

import sys

from keras_mgpu.cli.main import main

sys.exit(main())
