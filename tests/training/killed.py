"""A training that is killed in the middle."""

import os
import signal
import subprocess
import time
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # sums in threads differ in their last bits


def kill_at_first_checkpoint(command: list[str], checkpoint: Path) -> None:
    """Start the command and end it by kill −9 as soon as its checkpoint is there."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
