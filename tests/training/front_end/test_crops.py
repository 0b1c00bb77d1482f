"""Pairs of crops: keypoints lie where the image shows them, and the same ones are matched."""

import numpy as np
import pytest
from skimage import data

from linglue.features.linpoint import ASIDE
from linglue.geometry.homography import apply
from linglue.training.front_end.crops import CropConfig, draw_crops
from linglue.training.front_end.lessons import Lesson
from linglue.training.front_end.objective import collate


@pytest.fixture(scope="module")
def drawn() -> tuple[Lesson, list]:
    """Black dots on white, each a keypoint, seen twice; no change of light."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[20:380:24, 20:580:24]
    points = np.stack([x.ravel(), y.ravel()], axis=1) + rng.integers(-4, 5, (x.size, 2))
    image = np.full((400, 600, 3), 255, np.uint8)
    for dx in range(-3, 4):
        for dy in range(-3, 4):
            image[points[:, 1] + dy, points[:, 0] + dx] = 0
    lesson = Lesson(
        points.astype(np.float32),
        np.linspace(1, 0.1, len(points), dtype=np.float32),
        rng.normal(size=(len(points), 8)).astype(np.float16),
    )
    itself = np.repeat(np.arange(len(points))[:, None], 2, axis=1)
    config = CropConfig(side=160, strength=(1e-9, 1e-9))
    samples = [draw_crops((image, image), (lesson, lesson), itself, config, np.random.default_rng(i)) for i in range(6)]
    return lesson, samples


def test_keypoints_lie_on_what_they_were_on(drawn):
    _, samples = drawn
    dark = []
    for zero, one, _ in samples:
        for crop in (zero, one):
            assert crop.image.shape == crop.covered.shape == (160, 160)
            x, y = np.rint(crop.points - ASIDE).astype(int).T
            dark += list((crop.image[y, x] < 128)[crop.covered[y, x]])
    assert len(dark) > 100 and np.mean(dark) > 0.97


def test_matches_are_the_same_keypoint_in_both(drawn):
    lesson, samples = drawn
    for zero, one, matches in samples:
        assert len(matches) > 5
        np.testing.assert_array_equal(zero.ids[matches[:, 0]], one.ids[matches[:, 1]])
        for crop in (zero, one):
            expected = apply(crop.crop_from_image, lesson.keypoints[crop.ids])
            np.testing.assert_allclose(crop.points, expected, atol=1e-3)


def test_the_same_generator_draws_the_same(drawn):
    image = data.astronaut()
    lesson = Lesson(
        np.random.default_rng(1).uniform(50, 450, (200, 2)).astype(np.float32),
        np.ones(200, np.float32),
        np.zeros((200, 4), np.float16),
    )
    itself = np.repeat(np.arange(200)[:, None], 2, axis=1)
    a, b = (
        draw_crops((image, image), (lesson, lesson), itself, CropConfig(side=96), np.random.default_rng(5))
        for _ in range(2)
    )
    np.testing.assert_array_equal(a[0].image, b[0].image)
    np.testing.assert_array_equal(a[2], b[2])


def test_a_batch_keeps_matches_and_their_lessons_together(drawn):
    lesson, samples = drawn
    batch = collate(samples, [(lesson.descriptors,) * 2] * 6, [True] * 6, 20, np.random.default_rng(0))
    assert batch.images.shape == (12, 1, 160, 160) and batch.heat.shape == (12, 160, 160)
    for k in (0, 1):
        assert (np.bincount(batch.crop[k] % 6) <= 20).all()
        assert ((batch.crop[k] // 6) == k).all()
    # A match is one keypoint: both sides are taught the same, and its places differ by the homography.
    np.testing.assert_array_equal(batch.taught[0], batch.taught[1])
    for zero, one in batch.matches.tolist():
        pair = int(batch.crop[0][zero])
        assert int(batch.crop[1][one]) == pair + 6
        mapped = apply(batch.one_from_zero[pair].numpy(), batch.points[0][zero : zero + 1].numpy())
        np.testing.assert_allclose(mapped[0], batch.points[1][one], atol=0.05)
