"""Runs one reconstruction, killed again and again: killed_reconstruction.py IMAGES WORK → kills and registered images.

Each attempt is forked from this process, which has everything imported but never computed anything.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import cv2
import torch
from test_reconstruct import CONFIG

from linglue.sfm.reconstruct import reconstruct
from linglue.sfm.summary import read_summary
from linglue.sfm.workspace import Workspace

KILLS = 20


def attempt(images: Path, work: Path, seconds: float) -> bool:
    """Whether the run came to its end before it was killed."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        reconstruct(images, Workspace(work), CONFIG)
        os._exit(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                sys.exit(f"the run failed by itself with {status}")
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main() -> None:
    images, work = (Path(argument) for argument in sys.argv[1:])
    generator, kills = random.Random(0), 0
    # First too little time to finish on any machine; then ever more, so that slow ones are killed in every stage too.
    while not attempt(images, work, generator.uniform(0.02, 0.12 * max(1.0, 1.3 ** (kills - KILLS)))):
        kills += 1
    registered = read_summary(Workspace(work).summary).model.registered
    print(json.dumps({"kills": kills, "registered": registered}))


if __name__ == "__main__":
    main()
