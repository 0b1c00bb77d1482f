"""Pins docs/architecture.md: the rooms, the one direction of imports, and the files that a command runs through."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import architecture
from architecture import DOCUMENT, PACKAGE, ROOT

# From the ground up: a room imports from those below it, and from itself.
STOREYS = (
    ("errors",),
    ("core",),
    ("types",),
    ("geometry",),
    ("io",),
    ("viz", "features", "matching"),
    ("network",),
    ("matcher",),
    ("__init__",),
    ("sfm",),
    ("localization",),
    ("training", "evaluation"),
    ("cli",),
    ("__main__",),
)
LATE = {("types", "viz")}  # `Matches.draw` and `Features.draw` import what draws when they are called
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MATCH_FILES = 18

# What is still to be put in order, with the reason; the test fails when an entry is no longer needed.
EXCEPTIONS: dict[str, str] = {}


def room_of(path: str) -> str:
    """`sfm/map.py` → `sfm`, `types.py` → `types`."""
    return path.partition("/")[0].removesuffix(".py")


def imported_room(module: str) -> str:
    """`linglue.sfm.map.build_model` → `sfm`; a public name, `linglue.Matcher`, → `__init__`."""
    name = [*module.split("."), ""][1]
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() else "__init__"


def code_files() -> list[Path]:
    return sorted(path for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py"))


def upward_imports() -> Iterator[str]:
    storey = {room: height for height, rooms in enumerate(STOREYS) for room in rooms}
    for path, module in architecture.imports():
        room, other = room_of(path), imported_room(module)
        if room != other and (room, other) not in LATE and storey[other] >= storey[room]:
            yield f"{path} imports {module}"


def long_files() -> Iterator[str]:
    for path in code_files():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST_FILE:
            yield f"{path.relative_to(ROOT).as_posix()} has {lines} lines"


def long_functions() -> Iterator[str]:
    for path in code_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield f"{path.relative_to(ROOT).as_posix()}: {node.name} has {lines} lines"


def test_every_room_has_its_storey():
    rooms = {room_of(path.relative_to(PACKAGE).as_posix()) for path in PACKAGE.rglob("*.py")}
    assert sorted(rooms) == sorted(room for storey in STOREYS for room in storey)


def test_imports_point_downwards_files_and_functions_are_short():
    found = {*upward_imports(), *long_files(), *long_functions()}
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize("module", ["linglue", "linglue.cli.match", "linglue.sfm.reconstruct", "linglue.localization"])
def test_inference_never_loads_training_evaluation_or_the_command_line(module):
    program = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('linglue.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert "matcher" in loaded or module == "linglue.localization"
    assert not loaded & {"training", "evaluation"}
    assert "cli" not in loaded or module.startswith("linglue.cli")


def test_the_tree_is_the_one_on_disk():
    assert architecture.section(DOCUMENT.read_text(encoding="utf-8"), "tree").split() == architecture.tree().split(), (
        "run `make architecture`"
    )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", architecture.SCENARIOS)
def test_a_newcomers_path_is_the_one_that_runs(scenario):
    files = architecture.listed(DOCUMENT.read_text(encoding="utf-8"), scenario)
    assert files == architecture.path_of(scenario), "run `make architecture`"


def test_the_path_of_match_is_short():
    assert len(architecture.listed(DOCUMENT.read_text(encoding="utf-8"), "match")) <= MATCH_FILES
