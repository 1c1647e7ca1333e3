"""`fit` with several workers, which Keras 3.15 does not support."""

from __future__ import annotations

import logging

from keras_mgpu.internals.keras_multi_worker import repair_fit
from keras_mgpu.system.cluster import check_tf_config

logger = logging.getLogger("keras_mgpu")


def enable_multi_worker_fit() -> tuple[str, ...]:
    """Enables `fit` under `MultiWorkerMirroredStrategy` with several workers.

    Call it in every worker before `fit`. `evaluate` and `predict` then work, too. It replaces the
    functions of Keras that fail, for this process only. With a single worker, or under any other
    strategy, Keras works as before.

    Example:

    ```python
    keras_mgpu.enable_multi_worker_fit()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model()
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64)  # the total over all workers
    ```

    Returns:
        A tuple of strings that describe what was replaced. It is empty if this version of Keras
        needs no fix, or if it has been fixed already.

    Raises:
        ValueError: If the environment variable TF_CONFIG is invalid.
    """
    check_tf_config()
    fixed = repair_fit()
    for what in fixed:
        logger.info("Fixed in Keras for `fit` with several workers: %s.", what)
    return fixed
