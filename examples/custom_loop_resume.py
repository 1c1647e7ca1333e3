"""The custom training loop with checkpoints: kill it, start it again, and it resumes.

python examples/custom_loop_resume.py --die-after 40   # kills itself with SIGKILL
python examples/custom_loop_resume.py                  # resumes at the exact batch
"""

import os
import signal
from pathlib import Path

from custom_loop import BATCH_SIZE, digits, keras, km, make_model, make_step, parse_options, tf


def main():
    options = parse_options("custom_resume_run")
    strategy = tf.distribute.MirroredStrategy(km.pick_devices(options.devices))
    keras.utils.set_random_seed(0)
    model = make_model(strategy)
    step = make_step(strategy, model)
    data = km.resumable(*digits(options.tiny), batch_size=BATCH_SIZE, seed=0)
    checkpoint = km.DistributedCheckpoint(
        Path(options.folder) / "checkpoints", save_freq=5, data=data
    )
    callbacks = keras.callbacks.CallbackList([checkpoint], model=model, add_history=True)

    callbacks.on_train_begin()  # Restores the latest checkpoint, if any.
    if checkpoint.initial_epoch or checkpoint.initial_batch:
        print(f"Resuming in epoch {checkpoint.initial_epoch}, batch {checkpoint.initial_batch}")
    left = options.die_after
    for epoch in range(checkpoint.initial_epoch, 4):
        callbacks.on_epoch_begin(epoch)
        for number, batch in enumerate(strategy.experimental_distribute_dataset(data)):
            callbacks.on_train_batch_begin(number)
            loss = step(*batch)
            callbacks.on_train_batch_end(number, {"loss": loss})
            left -= 1
            if left == 0:
                print("Killing this process now.", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        callbacks.on_epoch_end(epoch, {"loss": float(loss)})
    callbacks.on_train_end()
    print("loss of each epoch:", *(f"{loss:.6f}" for loss in model.history.history["loss"]))


if __name__ == "__main__":
    main()
