"""Tasks on several processes."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from linglue.core.engine import Files, Shared
from linglue.core.pool import Pool, default_workers
from linglue.errors import LinGlueError


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_gets_its_result(workers):
    assert sorted(Pool(workers).run(partial(partial, pow, 2), range(25))) == [(n, 2**n) for n in range(25)]


def test_nothing_to_do():
    assert list(Pool(4).run(partial(partial, pow, 2), [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_shared_things_are_loaded_for_the_work(workers):
    found = Pool(workers).run(partial(partial, str.__getitem__), ["ab"], Shared(lambda text: [text], len_before))
    assert list(found) == [("ab", "b")]


def len_before(text):
    return len(text) - 1


def test_files_are_given_by_path(tmp_path):
    files: Files[str] = Files(lambda name: [tmp_path / name])
    assert dict(Pool().run(lambda: lambda name, path: (name, path), ["a", "b"], files)) == {
        name: (name, tmp_path / name) for name in "ab"
    }


def test_workers_are_checked():
    with pytest.raises(LinGlueError, match="workers is 0, expected at least 1"):
        list(Pool(0).run(partial(partial, pow, 2), [1]))
    assert default_workers("cuda") == 1
    assert default_workers("cpu") >= 1


def test_an_error_in_a_worker_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        list(Pool(2).run(partial(partial, divmod, 1), [1, 0, 2]))


def test_a_killed_worker_is_one_line():
    with pytest.raises(LinGlueError, match="a worker process was killed"):
        list(Pool(2).run(partial(partial, os._exit), [1, 2, 3]))


SCRIPT = """
import os, sys, time
from functools import partial
from pathlib import Path
from linglue.core.pool import Pool

def task(folder, number):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    list(Pool(2).run(partial(partial, task, sys.argv[1]), [1, 2]))
"""


def test_workers_die_with_a_killed_parent(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    workers = [int(path.name) for path in folder.iterdir()]
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().split()[2] != "Z"
