"""`fit` with several workers, which Keras cannot do by itself."""

from __future__ import annotations

import logging

from keras_mgpu.internals.keras_multi_worker import repair_fit
from keras_mgpu.system.cluster import check_tf_config

logger = logging.getLogger("keras_mgpu")


def enable_multi_worker_fit() -> tuple[str, ...]:
    """Lets `fit` run under `MultiWorkerMirroredStrategy` with several workers.

    Call it in every worker before `fit`; `evaluate` and `predict` run then, too. It replaces what
    fails in Keras, for this process. With one worker, and under any other strategy, Keras goes on
    as before.

    Example:

    ```python
    keras_mgpu.enable_multi_worker_fit()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model()
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64)  # of all workers together
    ```

    Returns:
        What was replaced, in words: nothing if this Keras needs no repair, or has been repaired.

    Raises:
        ValueError: If the environment variable TF_CONFIG cannot be right.
    """
    check_tf_config()
    repaired = repair_fit()
    for what in repaired:
        logger.info("Repaired in Keras, for fit with several workers: %s.", what)
    return repaired
