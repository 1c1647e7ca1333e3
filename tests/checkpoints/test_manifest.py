"""What a checkpoint says of itself, and what is not believed."""

import json
import zlib

import pytest

from keras_mgpu.checkpoints.manifest import (
    VERSION,
    DamagedError,
    FileEntry,
    Manifest,
    TensorEntry,
)

MANIFEST = Manifest(
    step=7,
    epoch=1,
    batch=2,
    values={"loss": 0.5},
    created="2026-01-02T03:04:05+00:00",
    topology={"strategy": "no strategy"},
    tensors=(TensorEntry("model/dense/kernel", (2, 3), "float32"),),
    files=(FileEntry("variables.index", 10, 123), FileEntry("state.json", 5, 4)),
)


def signed(**changes):
    """A manifest changed by someone who knows how to make its checksum right."""
    fields = {**json.loads(MANIFEST.to_json())["manifest"], **changes}
    checksum = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
    return json.dumps({"crc32": checksum, "manifest": fields})


def test_there_and_back():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert MANIFEST.num_bytes == 15


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"manifest": 3, "crc32": 4}'])
def test_other_texts_are_no_manifests(text):
    with pytest.raises(DamagedError):
        Manifest.from_json(text)


def test_every_flipped_bit_is_found():
    text = MANIFEST.to_json().encode()
    for index in range(len(text)):
        for bit in (0, 3, 6):
            damaged = bytearray(text)
            damaged[index] ^= 1 << bit
            try:
                read = Manifest.from_json(damaged.decode("utf-8", errors="replace"))
            except ValueError:
                continue
            assert read == MANIFEST  # A blank became another blank.


def test_a_newer_version_says_what_to_do():
    with pytest.raises(ValueError, match=r"newer keras_mgpu.*version 2.*pip install --upgrade"):
        Manifest.from_json(signed(version=VERSION + 1))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", "", "a\\b", "gs://x", "."])
def test_files_outside_the_folder_are_refused(name):
    with pytest.raises(ValueError, match="only name files of its own folder"):
        Manifest.from_json(signed(files=[{"name": name, "num_bytes": 1, "crc32": 1}]))


def test_a_manifest_that_lacks_something():
    fields = json.loads(signed())["manifest"]
    del fields["step"]
    checksum = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
    with pytest.raises(DamagedError, match="lacks"):
        Manifest.from_json(json.dumps({"crc32": checksum, "manifest": fields}))
