"""A folder of small images with a training of LinPoint on them; SIFT is the teacher, as it needs no weights."""

from pathlib import Path

import cv2
import pytest
import skimage.data

SETTINGS = """
output = "run"
validate_every = 4
checkpoint_every = 2
validation_pairs = 1
[lessons]
images = ["images"]
teacher = "sift"
keypoints = 500
folder = "lessons"
[crops]
side = 128
[learning]
steps = 6
batch = 2
points = 64
warmup = 2
cooldown = 2
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("train-features")
    (base / "images").mkdir()
    for name in ("astronaut", "coffee", "chelsea", "rocket", "brick", "gravel"):
        image = getattr(skimage.data, name)()
        image = image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
        for number, part in enumerate((image[:, :380], image[:, -380:], image[:300], image[-300:])):
            cv2.imwrite(str(base / "images" / f"{name}{number}.png"), part[..., ::-1])
    (base / "run.toml").write_text(SETTINGS)
    return base
