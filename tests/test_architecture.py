"""Who may import whom, and what importing must not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import keras_mgpu

PACKAGE = Path(keras_mgpu.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PURE = {"named_schedules", "partition", "schedule", "timeline", "version"}
ROOT = "keras_mgpu"


def imports(path):
    """Every module a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == ROOT:
            found |= {f"{ROOT}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", sorted(PURE))
def test_the_pure_core_needs_the_standard_library_only(name):
    for module in imports(PACKAGE / f"{name}.py"):
        top = module.split(".")[0]
        is_pure = top == ROOT and module.split(".")[1] in PURE
        assert is_pure or top in sys.stdlib_module_names, module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nobody_imports_the_package_root(path):
    if path.stem != "__init__":
        modules = {p.stem for p in FILES}
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == ROOT:
                assert len(parts) > 1, f"{path.stem} imports the package root"
                assert parts[1] in modules, f"{path.stem} imports {module} through the root"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_private_keras_is_imported_in_one_file(path):
    private = {module for module in imports(path) if module.startswith("keras.src")}
    assert not private or path.stem == "keras_internals"


def test_the_executor_knows_no_optimizer_and_no_metric():
    text = (PACKAGE / "executor.py").read_text(encoding="utf-8")
    code = text.split('"""', 2)[2]
    assert "optimizer" not in code
    assert "metric" not in code


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_assert_and_no_print(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print" or path.stem == "cli", f"{path.name}:{node.lineno}"


def loaded_by(statement):
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import keras_mgpu",
        "import keras_mgpu; keras_mgpu.PartitionPlan; keras_mgpu.replay; dir(keras_mgpu)",
        "import keras_mgpu.partition, keras_mgpu.schedule, keras_mgpu.timeline, keras_mgpu.cli",
    ],
)
def test_importing_is_cheap(statement):
    heavy = {"tensorflow", "keras", "numpy", "tensorboard", "rich"}
    assert not heavy & loaded_by(statement)


def test_every_public_name_is_there():
    for name in keras_mgpu.__all__:
        assert getattr(keras_mgpu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Pipeline'"):
        keras_mgpu.Pipeline  # noqa: B018
