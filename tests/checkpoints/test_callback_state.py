"""The state of other callbacks: what has changed since training began."""

import keras
import numpy as np

from keras_mgpu.checkpoints.callback_state import Neighbours, changed, states_of


class Counter(keras.callbacks.Callback):
    def __init__(self, limit=10):
        super().__init__()
        self.count, self.limit = 0, limit
        self.best = np.zeros(2)
        self.file = object()  # Not plain.
        self._private = 0


def test_only_plain_public_attributes_are_state():
    (state,) = states_of([Counter()], {}).values()
    assert set(state) >= {"count", "limit", "best"}
    assert not {"file", "_private", "model", "params"} & set(state)


def test_callbacks_of_one_class_are_numbered():
    assert list(states_of([Counter(), Counter()], {})) == ["Counter", "Counter#2"]


def test_only_what_has_changed_is_saved():
    before, now = {"Counter": {"count": 0, "limit": 3}}, {"Counter": {"count": 2, "limit": 3}}
    assert changed(now, before) == {"Counter": {"count": {"was": 0, "is": 2}}}


def test_state_is_restored_and_settings_are_not():
    old, new = Counter(limit=10), Counter(limit=7)
    neighbours = Neighbours([old])
    old.count, old.limit = 5, 9
    old.best = np.ones(2)
    arrays = {}
    state = neighbours.state(arrays)
    Neighbours([new]).restore(state, arrays)
    assert (new.count, new.limit) == (5, 7)
    np.testing.assert_array_equal(new.best, [1, 1])


def test_history():
    history, later = keras.callbacks.History(), keras.callbacks.History()
    history.history, history.epoch = {"loss": [0.5]}, [0]
    state = Neighbours([history]).state({})
    Neighbours([later]).restore(state, {})
    assert (later.history, later.epoch) == ({"loss": [0.5]}, [0])
