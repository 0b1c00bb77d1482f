"""Pins docs/architecture.md: the rooms, the one direction of imports, and the files that a command runs through."""

import ast
import re
import subprocess
import sys
import textwrap
from collections import Counter
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
    ("localization", "dense"),
    ("training", "evaluation", "viewer"),
    ("cli",),
    ("__main__",),
)
LATE = {("types", "viz")}  # `Matches.draw` and `Features.draw` import what draws when they are called
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MATCH_FILES = 24
RUNNER = "matching/together.py"  # runs what it is handed: parts of the work of any room

# Our old words → the field's: image, run, synthetic pair, expected …, outlier, scan, consistent.
OLD_WORDS = r"\bphoto(graph)?s?\b|sittings?\b|made pairs?\b|so manieth|allowed (is|are)|\bstrays?\b|\bsurvey|\bagreeing"

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


STOREY = {room: height for height, rooms in enumerate(STOREYS) for room in rooms}


def upward_imports() -> Iterator[str]:
    for path, module in architecture.imports():
        room, other = room_of(path), imported_room(module)
        if room != other and (room, other) not in LATE and STOREY[other] >= STOREY[room]:
            yield f"{path} imports {module}"


def upward_calls(calls: list[tuple[str, str]]) -> Iterator[str]:
    for caller, called in calls:
        room, other = room_of(caller), room_of(called)
        if not caller or caller == RUNNER or room == other or (room, other) in LATE:
            continue
        if STOREY[other] >= STOREY[room]:
            yield f"{caller} calls {called}"


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


def long_paths() -> Iterator[str]:
    files = architecture.listed(DOCUMENT.read_text(encoding="utf-8"), "match")
    if len(files) > MATCH_FILES:
        yield f"linglue match runs through {len(files)} files"


def test_every_room_has_its_storey():
    rooms = {room_of(path.relative_to(PACKAGE).as_posix()) for path in PACKAGE.rglob("*.py")}
    assert sorted(rooms) == sorted(room for storey in STOREYS for room in storey)


def test_imports_point_downwards_and_files_functions_and_paths_are_short():
    found = {*upward_imports(), *long_files(), *long_functions(), *long_paths()}
    assert found == set(EXCEPTIONS)


def public_parts(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """The public functions and classes of a file, and the public methods of these classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if "overload" not in map(ast.unparse, node.decorator_list):
                yield owner + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_parts(node.body, f"{node.name}.")


def test_public_functions_and_classes_say_what_they_are_for():
    silent = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name, node in public_parts(ast.parse(path.read_text(encoding="utf-8")).body)
        if not ast.get_docstring(node)
    }
    assert silent == set()


def test_a_class_has_a_name_of_its_own() -> None:
    """One word for one thing: no two public classes of the package share a name."""
    names = Counter(
        name
        for path in PACKAGE.rglob("*.py")
        for name, node in public_parts(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(node, ast.ClassDef) and "." not in name
    )
    assert [name for name, count in names.items() if count > 1] == []


# Methods whose arguments the base class or protocol describes.
DESCRIBED_ABOVE = {"check_settings", "detect", "extract", "keep", "match", "run", "sample"}


def test_arguments_are_described() -> None:
    """One argument may go without saying; of two or more that a docstring does not mention, nobody knows enough."""
    unsaid = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "cli"
        for name, node in public_parts(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(node, ast.FunctionDef) and node.name not in DESCRIBED_ABOVE
        if sum(not re.search(rf"\b{a.arg}\b", ast.get_docstring(node) or "") for a in node.args.args[1:]) > 1
    }
    assert unsaid == set()


def test_the_words_are_those_of_the_field():
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {match.group()}"
        for path in texts
        for match in re.finditer(OLD_WORDS, path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    assert found == set()


def test_every_file_says_what_it_is_for():
    silent = [path for path in PACKAGE.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not silent


@pytest.mark.parametrize("module", ["linglue.matcher", "linglue.cli.match", "linglue.sfm.reconstruct"])
def test_inference_never_loads_training_evaluation_or_the_command_line(module):
    program = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('linglue.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert module.split(".")[1] in loaded
    assert not loaded & {"training", "evaluation"}
    assert "cli" not in loaded or module.startswith("linglue.cli")


def test_the_tree_is_the_one_on_disk():
    written = architecture.section(DOCUMENT.read_text(encoding="utf-8"), "tree")
    assert names(textwrap.dedent(written)) == names(architecture.tree()), "run `make architecture`"


def names(tree: str) -> list[str]:
    """The names of rooms and files, without what is said about them."""
    lines = tree.strip().splitlines()
    return [word for line in lines for word in (line.split() if line.startswith("   ") else line.split()[:1])]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", architecture.SCENARIOS)
def test_a_newcomers_path_is_the_one_that_runs(scenario: str) -> None:
    ran = architecture.path_of(scenario)
    if scenario == "match":  # the others hand functions to pools and generators to writers
        assert not list(upward_calls(ran.calls)), "a room calls those below it, and they return; none calls back"
    files = architecture.listed(DOCUMENT.read_text(encoding="utf-8"), scenario)
    assert files == ran.files, "run `make architecture`"
