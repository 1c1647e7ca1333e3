"""Which worker the others wait for.

Workers that train together wait for one another inside each step and end it at the same time, so
the step takes all of them equally long. What differs is the time that each takes from the end of a
step to the start of the next. Each worker leaves that time in a file next to the logs, and the
first worker compares them.
"""

from __future__ import annotations

from keras_mgpu.monitoring.step_totals import StepTotals
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

SLOWEST = "train/slowest_worker"


class WorkerTimes:
    """Writes the time of this worker, and reads those of the others.

    Args:
        log_dir: Where the logs of all workers are.
        workers: The workers that train together.
    """

    def __init__(self, log_dir: str, workers: Workers) -> None:
        self._folder = files.join(log_dir, "worker_times")
        self._workers = workers
        files.gfile.makedirs(self._folder)
        files.remove(self._path(workers.index))  # An earlier run may have left it.

    def compare(self, before: StepTotals, now: StepTotals) -> dict[str, float]:
        """On the first worker, which worker is the slowest, once all have written their times."""
        if now.step > before.step:
            self._write((now.between_steps - before.between_steps) / (now.step - before.step))
        times = self._read_all() if self._workers.is_first else []
        if len(times) < self._workers.count:
            return {}
        return {SLOWEST: float(times.index(max(times)))}

    def _write(self, seconds: float) -> None:
        path = self._path(self._workers.index)
        with files.gfile.GFile(f"{path}.new", "w") as file:
            file.write(f"{seconds}\n")
        files.gfile.rename(f"{path}.new", path, overwrite=True)

    def _read_all(self) -> list[float]:
        """The time of every worker that has written one."""
        paths = [self._path(index) for index in range(self._workers.count)]
        return [float(files.read_text(path)) for path in paths if files.gfile.exists(path)]

    def _path(self, index: int) -> str:
        return files.join(self._folder, f"worker_{index}.txt")
