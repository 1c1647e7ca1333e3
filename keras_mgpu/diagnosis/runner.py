"""Runs checks one after the other; one that raises or hangs does not hide what others found.

Each check runs in a thread: a pipeline that waits for ever, inside TensorFlow, is a finding too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from keras_mgpu.diagnosis.privacy import without_names
from keras_mgpu.diagnosis.report import FAILED, UNKNOWN, CheckResult, Finding

Check = Callable[[], Finding]
_MAX_CHARACTERS = 6000  # Of a traceback; those of TensorFlow hold all of Keras's frames.


def run_checks(
    checks: Mapping[str, Check],
    max_seconds: float,
    on_begin: Callable[[str], None] = lambda name: None,
) -> list[CheckResult]:
    """Runs all checks.

    Args:
        checks: The checks, by their names.
        max_seconds: How long all of them may take. The one that runs then has failed, and those
            after it are left out.
        on_begin: Called with the name of each check before it is run.
    """
    until, results = time.monotonic() + max_seconds, []
    has_hung = False
    for name, check in checks.items():
        if has_hung:
            results.append(CheckResult(name, Finding(UNKNOWN, ("Not run.",))))
            continue
        on_begin(name)
        run = _Run(check)
        begin = time.monotonic()
        run.thread.start()
        run.thread.join(max(0.0, until - begin))
        has_hung = run.thread.is_alive()
        finding = _hung(max_seconds) if has_hung else run.finding
        seconds = time.monotonic() - begin
        results.append(CheckResult(name, finding, seconds, tuple(run.warnings), not has_hung))
    return results


@dataclass
class _Run:
    """A check in its thread, which does not keep the process alive."""

    check: Check
    finding: Finding = field(default_factory=lambda: Finding(UNKNOWN))
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="keras-mgpu check", daemon=True)

    def _run(self) -> None:
        with warnings.catch_warnings(record=True) as issued, _logged() as logged:
            warnings.simplefilter("always")
            try:
                self.finding = self.check()
            except Exception as error:
                self.finding = _raised(error)
        texts = [str(each.message) for each in issued] + logged
        self.warnings += dict.fromkeys(map(without_names, texts))


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Yields a list that gets the package's own log messages, which are shown nowhere else then."""
    texts: list[str] = []

    class Keep(logging.Handler):
        """Keeps messages."""

        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger, handler = logging.getLogger("keras_mgpu"), Keep(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def _raised(error: Exception) -> Finding:
    text = without_names("".join(traceback.format_exception(error)))
    message = without_names(f"{type(error).__name__}: {error}")
    return Finding(FAILED, (message,), {"traceback": text[-_MAX_CHARACTERS:]})


def _hung(max_seconds: float) -> Finding:
    return Finding(FAILED, (f"Not done after {max_seconds:.0f} seconds. It was given up.",))
