"""Which worker the others wait for.

Workers that train together end every step at the same moment, and inside of a step they wait for
one another: the time of a step is the same for all. What tells them apart is how long each takes
from the end of a step to the beginning of the next. Each leaves that in a file beside the logs, and
the first worker compares them.
"""

from __future__ import annotations

from keras_mgpu.monitoring.steps import Progress
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

SLOWEST = "train/slowest_worker"


class WorkerTimes:
    """What this worker tells the others of itself, and hears from them.

    Args:
        log_dir: Where the logs of all workers are.
        workers: Who they are.
    """

    def __init__(self, log_dir: str, workers: Workers) -> None:
        self._folder = files.join(log_dir, "worker_times")
        self._workers = workers
        files.gfile.makedirs(self._folder)
        files.remove(self._path(workers.index))  # It was left by a run before this one.

    def compare(self, before: Progress, now: Progress) -> dict[str, float]:
        """Of the first worker, which one is the slowest, once all have told their times."""
        if now.step > before.step:
            self._tell((now.between_steps - before.between_steps) / (now.step - before.step))
        times = self._heard() if self._workers.is_first else []
        if len(times) < self._workers.count:
            return {}
        return {SLOWEST: float(times.index(max(times)))}

    def _tell(self, seconds: float) -> None:
        path = self._path(self._workers.index)
        with files.gfile.GFile(f"{path}.new", "w") as file:
            file.write(f"{seconds}\n")
        files.gfile.rename(f"{path}.new", path, overwrite=True)

    def _heard(self) -> list[float]:
        """The time of every worker that has told one."""
        paths = [self._path(index) for index in range(self._workers.count)]
        return [float(files.read_text(path)) for path in paths if files.gfile.exists(path)]

    def _path(self, index: int) -> str:
        return files.join(self._folder, f"worker_{index}.txt")
