"""Private attributes in which stock callbacks keep their progress."""

from __future__ import annotations

# Other private attributes are left alone: open files, profilers that run, and the like.
PRIVATE_STATE = {
    "ModelCheckpoint": ("_batches_seen_since_last_saving", "_last_batch_seen"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}
