from __future__ import annotations

import numpy as np
import pytest

from linglue.training.images.photometric import PhotometricConfig, perturb


def test_shape_type_and_seed(images):
    for seed in range(30):
        before = images[0].copy()
        once, again = (perturb(images[0], np.random.default_rng(seed)) for _ in range(2))
        assert once.shape == before.shape and once.dtype == np.uint8
        np.testing.assert_array_equal(once, again)
        np.testing.assert_array_equal(images[0], before)
        assert once.std() > 4  # something is left to see


def test_zero_strength_changes_nothing(images, rng):
    assert perturb(images[1], rng, PhotometricConfig(strength=0)) is images[1]


@pytest.mark.parametrize("kind", ["gaussian_blur", "motion_blur"])
def test_blur_moves_nothing(kind, rng):
    """The centre of mass of a dot stays."""
    dot = np.zeros((41, 41, 3), dtype=np.uint8)
    dot[18:23, 18:23] = 255
    nothing = dict.fromkeys(("shading", "shadow", "gaussian_blur", "motion_blur", "night", "noise", "jpeg"), 0.0)
    for _ in range(10):
        image = perturb(dot, rng, PhotometricConfig(strength=1.0, **{**nothing, kind: 1.0}))[..., 0].astype(float)
        image -= image[0, 0]
        y, x = np.mgrid[:41, :41]
        assert (image * x).sum() / image.sum() == pytest.approx(20, abs=0.05)
        assert (image * y).sum() / image.sum() == pytest.approx(20, abs=0.05)
