from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.training.sources.homography import HomographyConfig, HomographyGenerator
from linglue.training.sources.pairs import grid_points, inside, shared
from linglue.training.sources.photometric import PhotometricConfig
from training.agreement import best_shift, patch_correlations

CLEAN = HomographyConfig(photometric=PhotometricConfig(strength=0))


@pytest.mark.parametrize("seed", range(8))
def test_there_and_back(photos, seed):
    pair = HomographyGenerator(CLEAN).sample(photos, np.random.default_rng(seed))
    height, width = pair.image0.shape[:2]
    points = 1 + grid_points(width - 2, height - 2, 30)  # not on the very edge, where rounding decides
    mapped, visible = pair.one_from_zero(points)
    assert visible.any()
    assert inside(mapped[visible], pair.image1).all()
    back, visible_back = pair.zero_from_one(mapped[visible])
    np.testing.assert_allclose(back, points[visible], atol=1e-6)
    assert visible_back.all()


def test_pixels_agree(photos):
    """At mapped points both views show the same."""
    generator = HomographyGenerator(replace(CLEAN, strong_tilt=35, zoom=1.6))
    pairs = [generator.sample(photos, np.random.default_rng(k)) for k in range(10)]
    every = np.concatenate([patch_correlations(pair) for pair in pairs])
    assert len(every) > 500
    assert np.median(every) > 0.97 and np.mean(every > 0.8) > 0.97
    errors = np.abs([best_shift(pair) for pair in pairs])
    assert np.median(errors) < 0.03 and errors.max() < 0.2


def test_overlap_is_bounded_and_varied(photos):
    generator = HomographyGenerator(CLEAN)
    overlaps = []
    for seed in range(25):
        zero, one = shared(generator.sample(photos, np.random.default_rng(seed)))
        overlaps.append(np.sqrt(zero * one))
    assert min(overlaps) > CLEAN.overlap[0] - 0.05  # measured on another grid than the generator's
    assert min(overlaps) < 0.4 and max(overlaps) > 0.6


def test_views_differ_in_size_and_scale(photos):
    pairs = [HomographyGenerator(CLEAN).sample(photos, np.random.default_rng(k)) for k in range(25)]
    longer = [max(i.shape[:2]) for p in pairs for i in (p.image0, p.image1)]
    assert min(longer) >= 0.75 * CLEAN.longer_side[0] and max(longer) <= CLEAN.longer_side[1]
    assert max(longer) > 1.5 * min(longer)
    zooms = []
    for pair in pairs:
        points = grid_points(pair.image0.shape[1], pair.image0.shape[0], 20)
        mapped, visible = pair.one_from_zero(points)
        right, _ = pair.one_from_zero(points + np.array([1, 0]))
        zooms.append(np.median(np.linalg.norm(right - mapped, axis=1)[visible]))
    assert max(zooms) > 1.6 and min(zooms) < 1 / 1.6


def test_same_seed_same_pair(photos):
    a, b = (HomographyGenerator().sample(photos, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(a.image0, b.image0)
    np.testing.assert_array_equal(a.image1, b.image1)
    points = grid_points(400, 300, 9)
    np.testing.assert_array_equal(a.one_from_zero(points)[0], b.one_from_zero(points)[0])


def test_one_photograph_is_enough(photos, rng):
    HomographyGenerator().sample(photos[:1], rng)


def test_impossible_overlap_is_an_error(photos, rng):
    with pytest.raises(LinGlueError, match="overlap"):
        HomographyGenerator(replace(CLEAN, overlap=(0.9999, 1.0))).sample(photos, rng)
