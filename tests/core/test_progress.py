"""Progress on terminals, in pipes and when nobody wants it."""

import time
from collections.abc import Iterator

import pytest

from linglue.core import progress as module
from linglue.core.progress import Verbosity, progress, set_verbosity


@pytest.fixture(autouse=True)
def normal() -> Iterator[None]:
    yield
    set_verbosity(Verbosity.NORMAL)


def test_in_a_pipe_there_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setitem(module.INTERVALS, Verbosity.NORMAL, 0.05)
    for _ in progress(range(10), desc="match", unit="pair"):
        time.sleep(0.02)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    assert all(line.startswith("match: ") and " of 10, " in line for line in lines)


def test_short_work_says_nothing(capsys):
    assert list(progress(range(10), desc="match")) == list(range(10))
    with progress(total=3, desc="extract") as bar:
        bar.update(3)
    assert capsys.readouterr() == ("", "")


def test_quiet(capsys, monkeypatch):
    set_verbosity(Verbosity.QUIET)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
