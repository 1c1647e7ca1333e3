"""Prints the links between pairs of GPUs: `python gpu_link_pairs.py DRIVER|none PAIRS`.

Run by a test, as a process can load the driver's library only once.
"""

import ctypes
import json
import sys

from keras_mgpu.placements.gpu_links import link_between_buses


def main(driver, pairs):
    if driver != "none":
        ctypes.CDLL(driver)
    json.dump([link_between_buses(*pair) for pair in json.loads(pairs)], sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
