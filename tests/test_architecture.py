"""Who may import whom, and what importing must not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import keras_mgpu

PACKAGE = Path(keras_mgpu.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOT = "keras_mgpu"
PURE = {
    "checkpoints.manifest",
    "checkpoints.retention",
    "checkpoints.save_timing",
    "monitoring.catalogue",
    "monitoring.clock",
    "monitoring.rows",
    "monitoring.series",
    "monitoring.steps",
    "named_schedules",
    "partition",
    "placements.differences",
    "placements.folding",
    "placements.report",
    "schedule",
    "timeline",
    "version",
}


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


def module_of(path):
    """`keras_mgpu/checkpoints/store.py` is `checkpoints.store`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_of(path) for path in FILES}


@pytest.mark.parametrize("name", sorted(PURE))
def test_the_pure_core_needs_the_standard_library_only(name):
    for module in imports(PACKAGE / f"{name.replace('.', '/')}.py"):
        top, _, rest = module.partition(".")
        is_pure = top == ROOT and rest in PURE
        assert is_pure or top in sys.stdlib_module_names, module


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_nobody_imports_the_package_root(path):
    if path.stem != "__init__":
        packages = {module.rpartition(".")[0] for module in MODULES} - {""}
        for module in imports(path):
            top, _, rest = module.partition(".")
            if top == ROOT:
                assert rest, f"{path.stem} imports the package root"
                assert rest in MODULES | packages, f"{path.stem} imports {module} through the root"


def reached_from(module, seen=frozenset()):
    """Every module of the package that importing one loads, itself left out."""
    found = set()
    for name in imports(PACKAGE / f"{module.replace('.', '/')}.py"):
        rest = name.partition(".")[2]
        if name.startswith(f"{ROOT}.") and rest in MODULES and rest not in seen | found:
            found |= {rest} | reached_from(rest, seen | found | {rest})
    return found


CALLBACKS = sorted(
    name for name in MODULES if name.startswith("callbacks.") and "__init__" not in name
)


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_know_neither_the_executor_nor_one_another(name):
    reached = reached_from(name)
    assert "keras_internals" in reached  # The search finds something.
    assert not {"executor", "pipeline", "pipeline_split"} & reached
    assert not set(CALLBACKS) & reached - {name}


@pytest.mark.parametrize("name", CALLBACKS)
def test_every_hook_is_one_that_keras_calls(name):
    """A misspelt `on_train_batch_ends` would be dead, and nobody would notice."""
    import keras

    tree = ast.parse((PACKAGE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    hooks = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_")
    ]
    assert hooks
    for hook in hooks:
        assert hasattr(keras.callbacks.Callback, hook), hook


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_private_keras_is_imported_in_one_file(path):
    private = {module for module in imports(path) if module.startswith("keras.src")}
    assert not private or path.stem in ("keras_internals", "multi_worker_fit")


def test_the_executor_knows_no_optimizer_and_no_metric():
    text = (PACKAGE / "executor.py").read_text(encoding="utf-8")
    code = text.split('"""', 2)[2]
    assert "optimizer" not in code
    assert "metric" not in code


@pytest.mark.parametrize("path", FILES, ids=module_of)
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
        "import keras_mgpu.blueprint.partition, keras_mgpu.blueprint.timeline, keras_mgpu.cli.main",
        "import keras_mgpu.checkpoints.manifest, keras_mgpu.checkpoints.retention",
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
