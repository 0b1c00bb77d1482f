"""Over all commands: bad input ends with one clear line, and everything that was there is as it was, to the bit."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from faults.cases import USAGE, all_cases
from faults.world import FRONT_END_TOML, TOML, build
from linglue.cli import main
from linglue.core.progress import Verbosity

CASES = [
    *all_cases(),
    *((f"train train/{name}.toml", says) for name, (_, says) in TOML.items()),
    *((f"train-features train-features/{name}.toml", says) for name, (_, says) in FRONT_END_TOML.items()),
]
IN_A_PROCESS = [*CASES[::40], *(case for case in CASES if "hostile" in case[0])]


def snapshot(folder: Path) -> dict[str, str]:
    """Every path below, with the content of files and the targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            content = f"link {path.readlink()}"
        elif stat.S_ISREG(mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            content = "folder"
        found[path.relative_to(folder).as_posix()] = content
    return found


def _copy(source: str, target: str) -> None:
    """Files with their times, pipes as pipes."""
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


class World:
    """The folder all cases share; one that changes it fails and gets it repaired for the next."""

    def __init__(self, folder: Path) -> None:
        self.pristine, self.folder = folder / "pristine", folder / "world"
        self.pristine.mkdir()
        build(self.pristine)
        self.before = snapshot(self.pristine)
        self.restore()

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder, symlinks=True, copy_function=_copy)

    def changes(self) -> list[str]:
        """Names of what was added, removed or changed since."""
        now = snapshot(self.folder)
        changed = sorted(name for name in now.keys() | self.before.keys() if now.get(name) != self.before.get(name))
        if changed:
            self.restore()
        return changed


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    pytest.importorskip("pycolmap")
    return World(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def inside(world, monkeypatch) -> World:
    monkeypatch.chdir(world.folder)
    monkeypatch.setenv("TORCH_HOME", str(world.folder / "no-cache"))
    monkeypatch.setattr("linglue.core.progress.INTERVALS", dict.fromkeys(Verbosity, 1e6))  # on slow machines, too
    return world


def check(code: int, out: str, err: str, texts: tuple[str, ...], expected: int, changes: list[str]) -> None:
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err and "Error(" not in err
    assert code == expected
    for text in texts:
        assert text in err
    assert changes == []


def run(arguments: str) -> int:
    try:
        return main(shlex.split(arguments))
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_bad_input(inside, case, capfd):
    arguments, *texts = case
    capfd.readouterr()
    code = run(arguments)
    out, err = capfd.readouterr()
    check(code, out, err, (*texts, f"linglue {arguments.split()[0]}: "), 1, inside.changes())


@pytest.mark.parametrize("case", USAGE, ids=lambda case: case[0])
def test_wrong_usage(inside, case, capfd):
    arguments, *texts = case
    capfd.readouterr()
    code = run(arguments)
    out, err = capfd.readouterr()
    check(code, out, err, (*texts, "linglue", "--help"), 2, inside.changes())


@pytest.mark.parametrize("case", IN_A_PROCESS, ids=lambda case: case[0])
def test_bad_input_of_a_process(inside, case):
    arguments, *texts = case
    name, *rest = shlex.split(arguments)
    command = [sys.executable, "-m", "linglue", name, "--quiet", *rest]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    check(done.returncode, done.stdout, done.stderr, tuple(texts), 1, inside.changes())


def test_the_table_is_large():
    assert len({case[0] for case in (*CASES, *USAGE)}) == len(CASES) + len(USAGE) >= 150
