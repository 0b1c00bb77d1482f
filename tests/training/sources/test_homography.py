from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.training.images.photometric import PhotometricConfig
from linglue.training.sources.homography import HomographyConfig, HomographySource
from linglue.training.sources.interface import grid_points
from training.agreement import assert_pixels_agree, inside, patch_correlations, shared

CLEAN = HomographyConfig(photometric=PhotometricConfig(strength=0))


@pytest.mark.parametrize("seed", range(8))
def test_there_and_back(images, seed):
    pair = HomographySource(CLEAN).sample(images, np.random.default_rng(seed)).pair()
    height, width = pair.image0.shape[:2]
    points = 1 + grid_points(width - 2, height - 2, 30)  # not on the very edge, where rounding decides
    mapped, visible = pair.one_from_zero(points)
    assert visible.any()
    assert inside(mapped[visible], pair.image1).all()
    back, visible_back = pair.zero_from_one(mapped[visible])
    np.testing.assert_allclose(back, points[visible], atol=1e-6)
    assert visible_back.all()


def test_pixels_agree(images):
    """At mapped points both views show the same."""
    generator = HomographySource(replace(CLEAN, strong_tilt=35, zoom=1.6))
    pairs = [generator.sample(images, np.random.default_rng(k)).pair() for k in range(10)]
    assert_pixels_agree(pairs, fewest=500)


def test_overlap_is_bounded_and_varied(images):
    generator = HomographySource(CLEAN)
    overlaps = []
    for seed in range(25):
        zero, one = shared(generator.sample(images, np.random.default_rng(seed)).pair())
        overlaps.append(np.sqrt(zero * one))
    assert min(overlaps) > CLEAN.overlap[0] - 0.05  # measured on another grid than the generator's
    assert min(overlaps) < 0.4 and max(overlaps) > 0.6


def test_views_differ_in_size_and_scale(images):
    pairs = [HomographySource(CLEAN).sample(images, np.random.default_rng(k)).pair() for k in range(25)]
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


def test_same_seed_same_pair(images):
    a, b = (HomographySource().sample(images, np.random.default_rng(7)).pair() for _ in range(2))
    np.testing.assert_array_equal(a.image0, b.image0)
    np.testing.assert_array_equal(a.image1, b.image1)
    points = grid_points(400, 300, 9)
    np.testing.assert_array_equal(a.one_from_zero(points)[0], b.one_from_zero(points)[0])


def test_one_image_is_enough(images, rng):
    HomographySource().sample(images[:1], rng).pair()


def test_impossible_overlap_is_an_error(images, rng):
    with pytest.raises(LinGlueError, match="overlap"):
        HomographySource(replace(CLEAN, overlap=(0.9999, 1.0))).sample(images, rng).pair()


def test_a_group_gives_all_its_pairs(images):
    config = replace(CLEAN, views=4, strong_tilt=35, zoom=1.6)
    counts = []
    for seed in range(4):
        group = HomographySource(config).sample(images, np.random.default_rng(seed))
        assert 2 <= len(group.images) <= 4 and {(0, k) for k in range(1, len(group.images))} <= set(group.pairs)
        counts.append(len(group.pairs))
        for i, j in group.pairs:
            agreement = patch_correlations(group.pair(i, j))
            assert len(agreement) < 20 or np.median(agreement) > 0.9
    assert np.mean(counts) > 4


def test_more_views_do_not_change_the_first_two(images):
    two = HomographySource(CLEAN).sample(images, np.random.default_rng(3))
    four = HomographySource(replace(CLEAN, views=4)).sample(images, np.random.default_rng(3))
    assert [i.shape for i in two.images] == [i.shape for i in four.images[:2]]
