"""Under which strategy the callbacks work: what tests try, and what the docs say.

A cell is `WORKS`, or whose limit it is. `test_strategies.py` tries every cell.
"""

from typing import NamedTuple

WORKS = "works"


class Row(NamedTuple):
    name: str
    fit: str
    loop: str
    dies: str


NOT_ASKED = "one process"
ROWS = (
    Row("no strategy", WORKS, WORKS, NOT_ASKED),
    Row("`OneDeviceStrategy`", WORKS, WORKS, NOT_ASKED),
    Row("`MirroredStrategy`, 2 devices", WORKS, WORKS, NOT_ASKED),
    Row("`MirroredStrategy`, 4 devices", WORKS, WORKS, NOT_ASKED),
    Row("`MultiWorkerMirroredStrategy`, 1 worker", WORKS, WORKS, NOT_ASKED),
    Row(
        "`MultiWorkerMirroredStrategy`, 2 workers",
        "works after `enable_multi_worker_fit()`; Keras 3.15 alone fails",
        WORKS,
        "the others fail with TensorFlow's error within a minute",
    ),
    Row(
        "`CentralStorageStrategy`",
        "works; weights are correct, the losses and metrics that Keras reports are not",
        WORKS,
        NOT_ASKED,
    ),
    Row(
        "`ParameterServerStrategy`",
        "not supported by Keras 3; use a custom loop",
        WORKS,
        "if a server dies, the coordinator fails with TensorFlow's error within a minute",
    ),
    Row("`PipelineSplit`", WORKS, WORKS, NOT_ASKED),
)


def markdown() -> str:
    lines = ["| strategy | `fit` | custom loop | when a process dies |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in ROWS]
    return "\n".join(lines) + "\n"
