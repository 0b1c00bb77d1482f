"""The code blocks of README, docs and docstrings are run, commands are at least understood, links lead somewhere."""

import ast
import doctest
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import cv2
import pytest

from linglue.cli import _parser, main
from rendered import render

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md")
)
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
TESTED_ELSEWHERE = {"docs/extending.md"}

# What a document takes for granted before its first block of Python, which is then run block after block.
SETUP = {
    "README.md": "",
    "docs/architecture.md": "import linglue\nf0 = f1 = f2 = f3 = linglue.Matcher.from_pretrained().extract('a.jpg', 9)",
    "docs/models.md": "import numpy as np\nD = 128\ndescriptors = np.random.default_rng(0).normal(size=(500, D))",
    "docs/localization.md": "image = 'a.jpg'",
}
# Blocks that are not run, since they need other programs' data; their imports of linglue are checked.
ONLY_IMPORTS = {"docs/interoperability.md", "docs/reconstruction.md"}

# Commands that are run as they stand; the others need data or hours, and are only parsed.
RUN = re.compile(r"linglue (match a\.jpg b\.jpg -o|reconstruct images/|localize new_images/|models)")


def blocks(document: str, *languages: str) -> list[str]:
    """The fenced code blocks of a document in one of these languages."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [code for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S) if language in languages]


def commands(document: str) -> Iterator[str]:
    """Every line `linglue …` of a code block, without its comment; `…` and `[` stand for something left out."""
    text = (ROOT / document).read_text(encoding="utf-8")
    indented = re.findall(r"^    (linglue .*)$", text, re.M)
    for line in re.split(r"\n|&&", "\n".join([*blocks(document, "sh", "bash"), *indented])):
        command = re.sub(r"\s+#.*", "", line).strip().removeprefix("python -m ")
        if command.startswith("linglue ") and not re.search(r"…|\[", command):
            yield command


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    """A reader's folder: two images, a folder of them, and new ones."""
    folder = tmp_path_factory.mktemp("reader")
    views = render(4)
    for name, view in [
        ("a.jpg", 0),
        ("b.jpg", 1),
        *((f"images/{i}.jpg", i) for i in range(4)),
        ("new_images/n.jpg", 2),
    ]:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), cv2.cvtColor(views[view].image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 95])
    return folder


@pytest.fixture(scope="module")
def map_folder(reader) -> Path:
    """A work folder with a model of `images`."""
    options = ["--max-keypoints", "500", "--workers", "1", "--device", "cpu"]
    assert main(["reconstruct", str(reader / "images"), "-o", str(reader / "map"), *options]) == 0
    return reader / "map"


def test_every_block_of_python_is_run_or_checked():
    with_python = {document for document in DOCUMENTS if blocks(document, "python")}
    assert with_python == {*SETUP, *ONLY_IMPORTS} | (TESTED_ELSEWHERE & with_python)


@pytest.mark.parametrize("document", [name for name in SETUP if name != "docs/localization.md"])
def test_python_runs(document, reader, monkeypatch):
    monkeypatch.chdir(reader)
    run_python(document)


@pytest.mark.slow
def test_python_of_localization_runs(reader, map_folder, monkeypatch):
    monkeypatch.chdir(reader)
    shutil.copytree(map_folder, reader / "WORK")
    run_python("docs/localization.md")


def run_python(document: str) -> None:
    namespace: dict[str, object] = {}
    exec(compile(SETUP[document], f"{document} (setup)", "exec"), namespace)
    for number, block in enumerate(blocks(document, "python"), 1):
        exec(compile(block, f"{document} (block {number})", "exec"), namespace)


@pytest.mark.parametrize("document", sorted(ONLY_IMPORTS))
def test_python_that_is_not_run_imports_what_exists(document):
    for block in blocks(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
                exec(compile(ast.Module([node], []), document, "exec"), {})


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings(module, reader, monkeypatch):
    monkeypatch.chdir(reader)
    assert doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_understood(document, monkeypatch):
    monkeypatch.setenv("LINGLUE_DATA", "data")
    for command in commands(document):
        arguments = shlex.split(command)[1:]
        assert _parser(arguments[0]).parse_args(arguments).command == arguments[0], command


@pytest.mark.slow
def test_commands_of_the_readme_run(reader, monkeypatch):
    monkeypatch.chdir(reader)
    ran = [command for command in commands("README.md") if RUN.match(command)]
    assert len(ran) == 3
    for command in ran:
        assert main(shlex.split(command)[1:]) == 0, command
    assert (reader / "matches.npz").is_file() and (reader / "poses.txt").read_text().startswith("n.jpg ")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_placeholder_is_left(document):
    """Words in capitals with an underscore that are neither code nor the name of a variable of the environment."""
    text = (ROOT / document).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```|`[^`\n]*`|^    [^\n]*$", "", text, flags=re.M | re.S)
    words = re.findall(r"\b(?:[A-Z]+_[A-Z_]+|TODO|FIXME|TBD|XXX|\?\?\?)\b", prose)
    assert [word for word in words if not word.startswith(("LINGLUE_", "TORCH_", "OMP_"))] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], target
