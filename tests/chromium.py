"""A real browser without a screen, where there is one."""

import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.io.images import Image

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--use-gl=angle", "--use-angle=swiftshader")


def screenshot(address: str, picture: Path, milliseconds: int = 8000) -> Image:
    """(H, W, 3) what the page at an address looks like after some time; skips the test where there is no Chromium."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    command = [program, *OPTIONS, "--enable-unsafe-swiftshader", "--hide-scrollbars", "--window-size=1100,2400"]
    profile = f"--user-data-dir={picture.parent / 'profile'}"
    command += [profile, f"--virtual-time-budget={milliseconds}", f"--screenshot={picture}", address]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    pixels = cv2.imread(str(picture))
    assert pixels is not None
    return np.asarray(pixels[..., ::-1], dtype=np.uint8)
