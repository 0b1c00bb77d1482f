"""One process at a time."""

import logging
import os
import subprocess
import sys
import threading

import pytest

from linglue.core.lock import locked
from linglue.errors import LinGlueError

HOLDER = """
import sys, time
from linglue.core.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def held_elsewhere(path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("name", ["", "file.db"])
def test_a_second_process_is_refused_or_waits_and_a_killed_one_holds_nothing(tmp_path, caplog, name):
    path = tmp_path / name
    process = held_elsewhere(path)
    with pytest.raises(LinGlueError, match="another process works on it, expected one at a time"), locked(path, False):
        pass
    threading.Timer(0.3, process.kill).start()
    with caplog.at_level(logging.WARNING), locked(path):
        assert process.wait() < 0
    assert "another process works here, waiting until it has finished" in caplog.text


def test_those_who_wait_never_work_at_the_same_time_and_no_file_is_left(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count():
        for _ in range(20):
            with locked(tmp_path / "file.db"):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "80"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_what_users_have_there_is_not_touched(tmp_path):
    (tmp_path / ".lock").write_text("mine")
    with locked(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LinGlueError, match="cannot be locked"), locked(tmp_path):
        pass


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(LinGlueError, match="cannot be locked"), locked(tmp_path / "none" / "file.db"):
        pass
