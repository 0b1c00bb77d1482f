"""Ctrl-C and SIGTERM: one line, also with workers, the exit code of the signal, and a later run resumes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from linglue.sfm.workspace import Workspace
from rendered import render, write_images

VIEWS = 12
WAIT = 600  # seconds until something must have happened, on a machine that is very busy


def start(*arguments: object) -> subprocess.Popen:
    """A command in a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "linglue", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in jobs of a script
    )


def wait_for_features(work: Workspace, process: subprocess.Popen, count: int) -> None:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and process.poll() is None:
        if work.features_file.is_file():
            with work.features() as store:
                if len(store.names()) >= count:
                    return
        time.sleep(0.05)
    raise AssertionError(f"ended too early: {process.communicate()}")


def wait_for_the_end_of_all(group: int) -> None:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("workers are left")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "word", "workers"),
    [
        (signal.SIGINT, 130, "interrupted", 2),
        (signal.SIGTERM, 143, "terminated", 2),
        (signal.SIGTERM, 143, "terminated", 1),
    ],
)
def test_a_stopped_run_says_so_in_one_line_and_resumes(run, tmp_path, number, code, word, workers):
    images, work = tmp_path / "images", Workspace(tmp_path / "work")
    write_images(images, render(VIEWS))
    options = ("-o", work.folder, "--max-keypoints", 2000, "--workers", workers, "--quiet")
    process = start("extract", images, *options)
    wait_for_features(work, process, 1)
    os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches workers, too
    _, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (code, f"linglue extract: {word}\n")
    wait_for_the_end_of_all(process.pid)
    with work.features() as store:
        done = len(store.names())
    assert run("extract", images, *options, "--json").code == 0
    with work.features() as store:
        assert done <= len(store.names()) == VIEWS
    assert not list(work.folder.glob(".linglue-*.part*"))
