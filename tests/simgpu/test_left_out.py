"""What is left out on simulated GPUs is still there to be left out."""

from pathlib import Path

import pytest
import simulated

TESTS = Path(simulated.__file__).parents[1]
SOURCES = {
    path.relative_to(TESTS.parent).as_posix(): path.read_text(encoding="utf-8")
    for path in [*TESTS.rglob("test_*.py"), *TESTS.parent.glob("keras_mgpu/blueprint/*.py")]
}


@pytest.mark.parametrize("part", simulated.LEFT_OUT)
def test_it_exists(part):
    file, _, name = part.rpartition("::")
    is_file = any(part in path for path in SOURCES)
    in_file = [text for path, text in SOURCES.items() if file in path]
    assert is_file or any(word(name) in text for text in in_file)


def word(name):
    """What stands in the source of a test: its name, or the end of its parameter's."""
    return name.partition("[")[0].strip("]") or name.strip("[]")
