"""The house as it is: its tree, its imports, and the files that a command runs through, in order.

python tests/architecture.py        writes the lists in docs/architecture.md anew (`make architecture`)
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "linglue"
DOCUMENT = ROOT / "docs" / "architecture.md"
WIDTH = 120


def tree() -> str:
    """Every room with its purpose and its files, each purpose being the first sentence of a docstring."""
    lines = ["src/linglue/"]
    for path in sorted(PACKAGE.glob("*.py")):
        lines.append(f"  {path.name:<16}{_purpose(path)}")
    for room in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        lines.append(f"  {room.name + '/':<16}{_purpose(room / '__init__.py')}")
        lines += textwrap.wrap(_names(room), WIDTH, initial_indent=" " * 18, subsequent_indent=" " * 18)
    lines += ["  weights/        our own weights and their cards", "tests/            mirrors src/"]
    return "\n".join(lines)


def _names(room: Path) -> str:
    """The files of a room, those of its inner rooms in brackets."""
    files = [path.stem for path in sorted(room.glob("*.py")) if path.stem != "__init__"]
    rooms = [path.parent for path in sorted(room.glob("*/__init__.py"))]
    return " · ".join([*files, *(f"{inner.name}/ ({_names(inner)})" for inner in rooms)])


def _purpose(path: Path) -> str:
    """The first line of a file's docstring, up to its first full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\.$", "", docstring.partition("\n")[0].partition(". ")[0])


def imports() -> Iterator[tuple[str, str]]:
    """Every import of linglue within linglue, late ones too: the file, and the dotted module it imports.

    Imports for annotations only (`if TYPE_CHECKING`) are left out: they never run.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        never_run = {id(node) for block in typing for node in ast.walk(block)}
        for node in ast.walk(tree):
            if id(node) in never_run:
                continue
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.partition(".")[0] == "linglue":
                    yield path.relative_to(PACKAGE).as_posix(), name


class Trace(NamedTuple):
    """What ran."""

    files: list[str]  # whose functions were called, in the order of their first call
    calls: list[tuple[str, str]]  # from one file to another, each once


def trace(arguments: list[str]) -> Trace:
    """Run `linglue ARGUMENTS` here and watch.

    What runs while a module is imported is left out: class bodies, decorators, constants.
    """
    from linglue.cli import main

    calls: dict[tuple[str, str], None] = {}
    importing = 0

    def on_return(frame: FrameType, event: str, _: object) -> Any:
        nonlocal importing
        importing -= event == "return"
        return on_return

    def on_call(frame: FrameType, event: str, _: object) -> Any:
        nonlocal importing
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return None
        if code.co_name == "<module>":
            importing += 1
            return on_return
        if not importing:
            calls[_caller(frame), _file(frame)] = None
        return None

    sys.settrace(on_call)
    try:
        failed = main(arguments)
    finally:
        sys.settrace(None)
    if failed:
        raise RuntimeError(f"linglue {' '.join(arguments)} failed")
    return Trace(list(dict.fromkeys(file for _, file in calls)), [(one, two) for one, two in calls if one != two])


def _file(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()


def _caller(frame: FrameType) -> str:
    """The file of ours that called, maybe through another package; "" for the first."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(str(PACKAGE)):
        above = above.f_back
    return "" if above is None else _file(above)


def match(folder: Path) -> list[str]:
    """Two images, with our own front-end."""
    from rendered import render, write_images

    views = render(3)[:2]
    write_images(folder, views)
    names = [str(folder / view.name) for view in views]
    return ["match", *names, "--max-keypoints", "300", "--device", "cpu"]


def reconstruct(folder: Path) -> list[str]:
    """A folder of four images."""
    from rendered import render, write_images

    write_images(folder / "images", render(4))
    options = ["--max-keypoints", "400", "--workers", "1", "--device", "cpu"]
    return ["reconstruct", str(folder / "images"), "-o", str(folder / "work"), *options]


def train(folder: Path) -> list[str]:
    """One step on pairs that are there already."""
    import cv2
    from skimage import data

    from linglue.cli import main

    (folder / "images").mkdir()
    for number in range(40):
        image = data.astronaut() if number % 2 else data.coffee()
        cv2.imwrite(str(folder / "images" / f"{number}.png"), image[:, number:])
    config = folder / "one-step.toml"
    config.write_text(
        f'output = "{folder / "run"}"\n[data]\nimages = "{folder / "images"}"\npairs = 4\nvalidation_pairs = 2\n'
        "keypoints = 512\nlonger_side = 480\nparallax = 0.0\nunrelated = 0.0\n[optimiser]\nsteps = 1\nbatch = 2\n"
    )
    arguments = ["train", str(config)]
    if main(arguments):
        raise RuntimeError("linglue train failed")
    for path in (folder / "run").iterdir():  # checkpoint, log and weights; the pairs are in folders and stay
        if path.is_file():
            path.unlink()
    return arguments


def evaluate(folder: Path) -> list[str]:
    """Three images with known homographies."""
    from evaluation.tasks.test_homography import write_data_set

    data = write_data_set(folder / "data")
    options = ["--compare", "mnn", "--max-keypoints", "300", "--device", "cpu"]
    return ["eval", "homography", str(data), "-o", str(folder / "work"), *options]


SCENARIOS: dict[str, Callable[[Path], list[str]]] = {
    "match": match,
    "reconstruct": reconstruct,
    "train": train,
    "eval": evaluate,
}


def path_of(scenario: str) -> Trace:
    """`trace` in a process of its own, where nothing is cached or imported yet."""
    command = [sys.executable, __file__, scenario]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    files, calls = json.loads(done.stdout.splitlines()[-1])
    return Trace(files, [(one, two) for one, two in calls])


def section(document: str, name: str) -> str:
    """What stands between the two comments that name a generated part of the document."""
    return _part(name).search(document)["body"]  # type: ignore[index]


def listed(document: str, scenario: str) -> list[str]:
    """The files that the document lists for a scenario, in order."""
    return re.findall(r"^\d+\. `([^`]+)`", section(document, scenario), flags=re.MULTILINE)


def write() -> None:
    """Write every generated part of the document anew."""
    parts = {"tree": "\n" + textwrap.indent(tree(), "    ") + "\n"}
    for scenario in SCENARIOS:
        files = path_of(scenario).files
        parts[scenario] = "\n".join(f"{i}. `{file}`: {_purpose(PACKAGE / file)}" for i, file in enumerate(files, 1))
    document = DOCUMENT.read_text(encoding="utf-8")
    for name, body in parts.items():
        found = _part(name).search(document)
        if found is not None:
            document = f"{document[: found.start('body')]}{body}{document[found.end('body') :]}"
    DOCUMENT.write_text(document, encoding="utf-8")


def _part(name: str) -> re.Pattern[str]:
    comment = rf"<!-- {{}} {name}[^\n]*-->"
    return re.compile(
        rf"(?P<begin>{comment.format('begin')})\n(?P<body>.*?)\n(?P<end>{comment.format('end')})", flags=re.DOTALL
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            arguments = SCENARIOS[sys.argv[1]](Path(temporary))
            print("\n" + json.dumps(trace(arguments)))
    else:
        write()
