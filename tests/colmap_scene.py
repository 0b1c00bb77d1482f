"""A COLMAP database without images: points in space seen by four cameras in a row, with SIFT-like descriptors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linglue.geometry.colmap import pixel_from_colmap
from linglue.io.colmap.database import write_database
from linglue.types import Features

NAMES = ["left side/ä 1.jpg", "left side/ä 1.png", "right-side/b.jpg", "c.jpg"]
WIDTH, HEIGHT, FOCAL, COUNT = 640, 480, 500.0, 150


def camera(**settings: Any) -> Any:
    """A pycolmap.Camera; skips the test where there is no pycolmap."""
    pycolmap = pytest.importorskip("pycolmap")
    parameters = [FOCAL, WIDTH / 2, HEIGHT / 2]
    made = pycolmap.Camera(model="SIMPLE_PINHOLE", width=WIDTH, height=HEIGHT, params=parameters, **settings)
    made.has_prior_focal_length = True
    return made


def scene() -> dict[str, Features]:
    """Keypoint i is the same point in all images, and looks nearly the same."""
    random = np.random.default_rng(0)
    points = random.uniform([-2, -1.5, 4], [2, 1.5, 8], (COUNT, 3))
    looks = random.dirichlet(np.full(128, 0.3), COUNT)
    scales, oris = random.uniform(20, 60, COUNT), random.uniform(-3, 3, COUNT)
    found = {}
    for number, name in enumerate(NAMES):
        seen = points - [0.4 * number - 0.6, 0.1 * number, 0]
        xy = FOCAL * seen[:, :2] / seen[:, 2:] + [WIDTH / 2, HEIGHT / 2]
        histograms = looks + 0.2 * random.dirichlet(np.full(128, 0.3), COUNT)
        found[name] = Features(
            keypoints=pixel_from_colmap(xy),
            descriptors=np.sqrt(histograms / histograms.sum(1, keepdims=True)),
            image_size=(WIDTH, HEIGHT),
            scales=scales / seen[:, 2],
            oris=oris,
            kind="sift",
        )
    return found


def all_pairs() -> list[tuple[str, str, np.ndarray]]:
    """All pairs of images with their true matches."""
    same = np.repeat(np.arange(COUNT)[:, None], 2, axis=1)
    return [(a, b, same) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]


def write_scene(path: Path, matches: list[tuple[str, str, np.ndarray]], with_descriptors: bool = True) -> None:
    write_database(path, dict.fromkeys(NAMES, camera()), scene().__getitem__, matches, with_descriptors)
