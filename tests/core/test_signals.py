"""SIGTERM stays ours."""

import signal
import subprocess
import sys

import pytest

from linglue.core.signals import own_sigterm

TERMINATED = """
import os, signal, sys
from linglue.core.optional import need

def stop(number, frame):
    raise SystemExit("ours")

signal.signal(signal.SIGTERM, stop)
need("pycolmap", "a test")
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_handler_installed_in_the_block_does_not_stay():
    before = signal.getsignal(signal.SIGTERM)
    with own_sigterm():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_colmap_does_not_answer_instead_of_us():
    pytest.importorskip("pycolmap")
    ended = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "ours\n")
