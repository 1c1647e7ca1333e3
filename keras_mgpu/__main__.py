"""Makes `python -m keras_mgpu` the command `keras-mgpu`, for when no script is on the path."""

import sys

from keras_mgpu.cli.main import main

sys.exit(main())
