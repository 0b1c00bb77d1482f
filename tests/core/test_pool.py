"""Tasks on several processes."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from linglue.core.pool import default_workers, run_all
from linglue.errors import LinGlueError


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_gets_its_result(workers):
    assert sorted(run_all(partial(partial, pow, 2), range(25), workers)) == [(n, 2**n) for n in range(25)]


def test_nothing_to_do():
    assert list(run_all(partial(partial, pow, 2), [], 4)) == []


def test_workers_are_checked():
    with pytest.raises(LinGlueError, match="workers is 0, expected at least 1"):
        list(run_all(partial(partial, pow, 2), [1], 0))
    assert default_workers("cuda") == 1
    assert default_workers("cpu") >= 1


def test_an_error_in_a_worker_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        list(run_all(partial(partial, divmod, 1), [1, 0, 2], 2))


def test_a_killed_worker_is_one_line():
    with pytest.raises(LinGlueError, match="a worker process was killed"):
        list(run_all(partial(partial, os._exit), [1, 2, 3], 2))


SCRIPT = """
import os, sys, time
from functools import partial
from pathlib import Path
from linglue.core.pool import run_all

def task(folder, number):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    list(run_all(partial(partial, task, sys.argv[1]), [1, 2], 2))
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
