"""Values of callbacks in JSON, and back."""

import json
import math

import numpy as np
import pytest

from keras_mgpu.checkpoints.plain_values import NotPlain, decode, encode


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        "text",
        2.5,
        math.inf,
        [1, [2, (3, None)]],
        {1: {"a", "b"}, "x": {}, (1, 2): []},
    ],
)
def test_there_and_back(value):
    plain = json.loads(json.dumps(encode(value, "key", {})))
    found = decode(plain, {})
    assert found == value
    assert type(found) is type(value)


def test_not_a_number():
    assert math.isnan(decode(encode(math.nan, "key", {}), {}))
    assert decode(encode(np.float32(0.5), "key", {}), {}) == 0.5


def test_arrays_are_kept_apart_and_compared_by_checksum():
    arrays = {}
    plain = encode([np.arange(3)], "best", arrays)
    assert list(arrays) == ["best/0"]
    np.testing.assert_array_equal(decode(plain, arrays)[0], [0, 1, 2])
    assert encode([np.arange(3)], "best", {}) == plain
    assert encode([np.arange(3) + 1], "best", {}) != plain


@pytest.mark.parametrize("value", [object(), [print], {"a": np.array([object()])}])
def test_other_objects_are_refused(value):
    with pytest.raises(NotPlain):
        encode(value, "key", {})
