"""Images for the generators, from the scikit-image wheel."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import skimage.data

from linglue.io.images import Image, as_image

NAMES = ("astronaut", "coffee", "chelsea", "rocket", "camera", "gravel", "brick", "grass")


@pytest.fixture(scope="session")
def images() -> list[Image]:
    return [as_image(getattr(skimage.data, name)()) for name in NAMES]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    cv2.setNumThreads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
