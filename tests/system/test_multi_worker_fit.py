"""What `enable_multi_worker_fit` replaces in Keras, and what it leaves alone."""

import forks
import pytest
from keras.src.backend.tensorflow import trainer

from keras_mgpu import enable_multi_worker_fit


def test_a_wrong_tf_config_is_named_before_anything_is_replaced(monkeypatch):
    before = trainer.reduce_per_replica
    monkeypatch.setenv("TF_CONFIG", "worker 0 of 2")
    with pytest.raises(ValueError, match="TF_CONFIG is not valid JSON"):
        enable_multi_worker_fit()
    assert trainer.reduce_per_replica is before


def test_the_repair_touches_nothing_else(tmp_path):
    """Whatever else is trained after it is trained as before."""
    code = (
        "import keras_mgpu as km, keras\n"
        "from keras.src.backend.tensorflow import trainer\n"
        "before = trainer.reduce_per_replica\n"
        "assert len(km.enable_multi_worker_fit()) == 2\n"
        "after = trainer.reduce_per_replica\n"
        "assert km.enable_multi_worker_fit() == ()\n"
        "assert trainer.reduce_per_replica is after is not before\n"
        "trainer.reduce_per_replica = lambda values, strategy, reduction: (\n"
        "    strategy.reduce('MEAN', values, axis=None))\n"  # As a fixed Keras would.
        "assert km.enable_multi_worker_fit() == ()\n"
        "import numpy as np\n"
        "import tensorflow as tf\n"
        "def losses():\n"
        "    keras.utils.set_random_seed(0)\n"
        "    with tf.distribute.OneDeviceStrategy('/CPU:0').scope():\n"
        "        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "        model.compile('sgd', 'mse')\n"
        "    return model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0).history['loss']\n"
        "trainer.reduce_per_replica = before\n"
        "expected = losses()\n"
        "trainer.reduce_per_replica = after\n"
        "assert losses() == expected\n"
    )
    forks.run_code(code, tmp_path)
