"""Prints what the driver says of pairs of GPUs: `python gpu_link_pairs.py DRIVER|none PAIRS`.

Run by a test, as a process can load the driver's library only once.
"""

import ctypes
import json
import sys

from keras_mgpu.placements.gpu_links import has_peer_access_between_buses, link_between_buses
from keras_mgpu.system.nvidia_driver import driver_version


def main(driver, pairs):
    if driver != "none":
        ctypes.CDLL(driver)
    pairs = json.loads(pairs)
    found = {
        "version": driver_version(),
        "links": [link_between_buses(*pair) for pair in pairs],
        "peer access": [has_peer_access_between_buses(*pair) for pair in pairs],
    }
    json.dump(found, sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
