"""The rooms of the package: who may import whom, and what importing must not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import slow

import keras_mgpu
from keras_mgpu.internals.private_names import NAMES, missing

PACKAGE = Path(keras_mgpu.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOT = "keras_mgpu"

# What each room may import beside itself: rooms, or single modules. Rooms inside rooms are listed
# by themselves.
ROOMS = {
    "blueprint": (),
    "internals": (),
    "system": ("internals",),
    "model": ("blueprint", "internals", "system"),
    "profiling": ("blueprint", "internals", "system"),
    "pipeline.stage": ("blueprint", "internals", "system", "model", "pipeline.micro_batches"),
    "pipeline.loss": (
        "internals",
        "system",
        "model",
        "pipeline.micro_batches",
        "pipeline.stage",
    ),
    "pipeline": (
        "blueprint",
        "internals",
        "system",
        "model",
        "profiling",
        "pipeline.stage",
        "pipeline.loss",
    ),
    "checkpoints": ("internals", "system", "model"),
    "placements": ("blueprint", "internals", "system", "model"),
    "monitoring": ("blueprint", "internals", "system", "model", "profiling"),
    "callbacks": (
        "internals",
        "system",
        "model",
        "profiling",
        "checkpoints",
        "placements",
        "monitoring",
    ),
    "diagnosis": (
        "blueprint",
        "internals",
        "system",
        "profiling",
        "pipeline",
        "placements",
    ),
    "cli": ("blueprint", "system", "checkpoints", "placements", "diagnosis"),
}
# Modules that need nothing but the standard library and one another.
PURE = {
    "callbacks.run_progress",
    "checkpoints.manifest",
    "checkpoints.retention",
    "checkpoints.save_pace",
    "checkpoints.save_timing",
    "diagnosis.page",
    "diagnosis.privacy",
    "diagnosis.report",
    "diagnosis.runner",
    "monitoring.catalogue",
    "monitoring.clock",
    "monitoring.metric_selection",
    "monitoring.poll_schedule",
    "monitoring.profiling_schedule",
    "monitoring.run_names",
    "monitoring.series",
    "monitoring.source",
    "monitoring.step_timer",
    "monitoring.step_totals",
    "monitoring.step_values",
    "monitoring.write_schedule",
    "placements.differences",
    "placements.folding",
    "placements.report",
    "placements.report_parts",
    "placements.report_warnings",
    "version",
}


def module_of(path):
    """`keras_mgpu/checkpoints/store.py` is `checkpoints.store`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def room_of(module):
    """The innermost room that a module is in; `""` for those at the root."""
    inside = [room for room in ROOMS if module == room or module.startswith(f"{room}.")]
    return max(inside, key=len, default="")


def imports(path):
    """Every module a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name.removeprefix(f"{ROOT}.") in MODULES}
            found |= modules or {node.module}
    return found


MODULES = {module_of(path) for path in FILES}


def own_imports(path):
    """The modules of this package that a file imports."""
    return {
        name.removeprefix(f"{ROOT}.") for name in imports(path) if name.partition(".")[0] == ROOT
    }


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_room_imports_only_what_it_may(path):
    module = module_of(path)
    room = room_of(module)
    for imported in own_imports(path):
        assert imported in MODULES, f"{module} imports {imported} through the package root"
        other = room_of(imported)
        below = ROOMS.get(room, ROOMS)
        allowed = other == room or other in below or imported in below or imported == "version"
        assert allowed, f"{module} imports {imported}, and {room} may not import {other}"


def test_every_folder_is_a_room():
    folders = {module_of(path) for path in FILES if path.name == "__init__.py"} - {"__init__"}
    assert folders == set(ROOMS)


def test_rooms_do_not_import_one_another_in_a_circle():
    order = list(ROOMS)
    for room, allowed in ROOMS.items():
        for other in set(allowed) & set(ROOMS):
            assert order.index(other) < order.index(room), f"{room} stands before {other}"


@pytest.mark.parametrize(
    "name", sorted(PURE | {m for m in MODULES if room_of(m) == "blueprint" and "." in m})
)
def test_the_pure_core_needs_the_standard_library_only(name):
    for module in imports(PACKAGE / f"{name.replace('.', '/')}.py"):
        top, _, rest = module.partition(".")
        is_pure = top == ROOT and (rest in PURE or room_of(rest) == "blueprint")
        assert is_pure or top in sys.stdlib_module_names, module


# Callbacks, and not what they share: that is pure.
CALLBACKS = sorted(name for name in MODULES - PURE if name.startswith("callbacks."))


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_do_not_know_one_another(name):
    assert not set(CALLBACKS) & own_imports(PACKAGE / f"{name.replace('.', '/')}.py")


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


# Names with an underscore that Python documents for everybody's use.
DOCUMENTED = {"_exit", "_replace", "_fields_", "_b_base_", "_current_frames", "_SubParsersAction"}
PRIVATE_MODULES = ("keras.src", "tensorflow.python", "tensorflow.tsl")
KNOWN = {part for each in NAMES for part in each.name.split(".")}


def private_uses(path):
    """Private names that a file takes from objects or modules that are not its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bases = {ast.unparse(b) for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for b in n.bases}
    is_model = bool(bases & {"keras.Model", "SharesCompiled"})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_dunder = node.attr.startswith("__") and node.attr != "__internal__"
            is_keras_own = is_own and is_model and node.attr in KNOWN
            if not (is_own or is_dunder or node.attr in DOCUMENTED) or is_keras_own:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and str(node.value).startswith("_"):
            yield from [(node.lineno, node.value)] if node.value in KNOWN else []
    for module in imports(path):
        if module.startswith(PRIVATE_MODULES):
            yield 1, module


OUTSIDE = [path for path in FILES if room_of(module_of(path)) != "internals"]
INSIDE = [path for path in FILES if room_of(module_of(path)) == "internals"]


@pytest.mark.parametrize("path", OUTSIDE, ids=module_of)
def test_private_names_are_used_in_internals_only(path):
    found = [f"{path.name}:{line} {name}" for line, name in private_uses(path)]
    assert not found, f"Move these to keras_mgpu/internals: {found}"


@pytest.mark.parametrize("path", INSIDE, ids=module_of)
def test_every_private_name_is_listed(path):
    """Else a release that drops it would be a mystery, and not a line of a list."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    used = {name for _, name in private_uses(path) if name.startswith("_")}
    assert used - own <= KNOWN | {"_getframe"}
    listed = {f"{each.owner}.{each.name}." for each in NAMES}
    for node in ast.walk(tree):
        is_private = isinstance(node, ast.ImportFrom) and node.module.startswith(PRIVATE_MODULES)
        for alias in node.names if is_private and path.stem != "private_names" else ():
            name = f"{node.module}.{alias.name}."
            assert any(each.startswith(name) for each in listed), f"{name} is not in the list"


def test_every_listed_name_is_used():
    text = "\n".join(path.read_text() for path in INSIDE if path.stem != "private_names")
    for each in NAMES:
        assert each.name.split(".")[-1] in text, f"{each} is not used any more"


def test_keras_and_tensorflow_have_every_private_name():
    assert not missing(), "\n".join(map(str, missing()))


def test_the_executor_knows_no_optimizer_and_no_metric():
    text = (PACKAGE / "pipeline/executor.py").read_text(encoding="utf-8")
    code = text.split('"""', 2)[2]
    assert "optimizer" not in code
    assert "metric" not in code


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_assert_and_no_print(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path.name}:{node.lineno}"


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


def test_every_file_that_takes_long_exists():
    """Else its tests would be started last, and run by `make quick`."""
    tests = Path(__file__).parent
    assert [file for file in slow.FILES if not (tests / file).is_file()] == []
