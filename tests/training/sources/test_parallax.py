"""Scenes with depth: the renderer against plane geometry, the mapper against pixels, occlusion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from linglue.geometry.camera import Camera, View
from linglue.geometry.pose import Pose
from linglue.training.images.photometric import PhotometricConfig
from linglue.training.images.warp import pyramid
from linglue.training.sources.interface import ImagePair, grid_points
from linglue.training.sources.parallax import DepthMapper, ParallaxConfig, ParallaxSource, doubtful_pixels
from linglue.training.sources.renderer import NOTHING, colour, quad, relief, see
from linglue.types import ImageSize
from training.agreement import assert_pixels_agree, inside, patch_correlations, shared

CLEAN = ParallaxConfig(photometric=PhotometricConfig(strength=0))
SIZE = ImageSize(320, 240)


def turned(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])


LEFT = View(Camera.centred(SIZE, 300.0), Pose.at(np.eye(3), np.zeros(3)))
RIGHT = View(Camera.centred(SIZE, 330.0), Pose.at(turned(0.15), np.array([1.0, 0.1, 0.2])))


def pair_of(surfaces) -> ImagePair:
    zero, one = see(surfaces, LEFT), see(surfaces, RIGHT)
    sky = np.zeros((SIZE.height, SIZE.width, 3), dtype=np.uint8)
    doubtful = doubtful_pixels(zero), doubtful_pixels(one)
    return ImagePair(
        colour(surfaces, zero, sky),
        colour(surfaces, one, sky),
        DepthMapper(zero, one, *doubtful),
        DepthMapper(one, zero, *doubtful[::-1]),
    )


def wall(texture, z: float, side: float, slant: float = 0.0, x: float = 0.0):
    """A square wall around (x, 0, z), turned away by z += slant · x."""
    right = np.array([side, 0, slant * side])
    down = np.array([0, side, 0.0])
    return quad(texture, np.array([x, 0, z]) - (right + down) / 2, right, down)


def test_slanted_wall_by_plane_geometry(images):
    """Rays cut with the plane z = 6 + x/2 by hand."""
    pair = pair_of([wall(pyramid(images[0]), 6, 30, slant=0.5)])
    pixels = grid_points(320, 240, 25)
    rays = np.column_stack([(pixels - [159.5, 119.5]) / 300, np.ones(len(pixels))])
    points = rays * (6 / (1 - rays[:, 0] / 2))[:, None]
    expected, _ = RIGHT.project(points)
    mapped, visible = pair.one_from_zero(pixels)
    np.testing.assert_allclose(mapped, expected, atol=1e-6)
    np.testing.assert_array_equal(visible, inside(expected, pair.image1))
    # Triangulating what was mapped returns the plane.
    ray1 = np.column_stack([(mapped - [159.5, 119.5]) / 330, np.ones(len(mapped))]) @ RIGHT.cam_from_world.rotation
    for ray0, other, point in zip(rays[visible], ray1[visible], points[visible], strict=True):
        depths = np.linalg.lstsq(np.column_stack([ray0, -other]), RIGHT.centre, rcond=None)[0]
        np.testing.assert_allclose(ray0 * depths[0], point, atol=1e-6)


def test_pixels_of_a_wall(images):
    """A frontal wall at the distance of its focal length is the texture itself."""
    texture = images[0]
    side = texture.shape[1]
    surface = quad(
        pyramid(texture), np.array([-side / 2, -side / 2, 300.0]), np.array([side, 0, 0.0]), np.array([0, side, 0.0])
    )
    image = colour([surface], see([surface], LEFT), np.zeros((240, 320, 3), dtype=np.uint8))
    x, y = (side - 320) // 2, (side - 240) // 2
    assert np.abs(image.astype(int) - texture[y : y + 240, x : x + 320]).max() <= 1


def test_occlusion(images):
    """A small wall hides a part of the large one: hidden there in image 1, and known to be."""
    front, back = wall(pyramid(images[1]), 3, 1.0, x=0.3), wall(pyramid(images[0]), 8, 30)
    pair = pair_of([back, front])
    zero = pair.one_from_zero.a  # type: ignore[attr-defined]  # the view that the transfer starts from
    pixels = grid_points(320, 240, 60)
    at = np.rint(pixels).astype(int)
    on_back = zero.face[at[:, 1], at[:, 0]] == 0
    mapped, visible = pair.one_from_zero(pixels)
    # Is the line from the right camera to the point on the back wall cut by the front wall?
    rays = np.column_stack([(pixels - [159.5, 119.5]) / 300, np.ones(len(pixels))]) * 8
    share = (3 - RIGHT.centre[2]) / (8 - RIGHT.centre[2])
    crossing = RIGHT.centre + share * (rays - RIGHT.centre)
    distance = np.abs(crossing[:, :2] - [0.3, 0]).max(axis=1) - 0.5
    sure = on_back & ~np.isnan(mapped).any(axis=1) & inside(mapped, pair.image1)
    hidden, open_ = sure & (distance < 0), sure & (distance > 0)
    assert hidden.sum() > 50 and open_.sum() > 500
    assert not visible[hidden].any()
    assert visible[open_].all()
    assert np.isnan(mapped).any()  # rims are unknown


def test_front_wall_seen_from_behind_is_not_drawn(images):
    surface = wall(pyramid(images[0]), 5, 4)
    behind = View(Camera.centred(SIZE, 300.0), Pose.at(np.diag([-1.0, 1, -1]), np.array([0, 0, 10.0])))
    assert (see([surface], LEFT).face == 0).any()
    assert (see([surface], behind).face == NOTHING).all()


def test_wall_through_the_camera_plane(images):
    """A floor from behind the camera to far ahead covers the lower half, with the depths of a floor."""
    floor = quad(pyramid(images[5]), np.array([-50.0, 1, 100]), np.array([100.0, 0, 0]), np.array([0, 0, -120.0]))
    geometry = see([floor], LEFT)
    assert (geometry.face[150:] == 0).all() and (geometry.face[:115] == NOTHING).all()
    y = np.arange(150, 240)
    np.testing.assert_allclose(1 / geometry.inverse_depth[150:, 7], 300 / (y - 119.5), rtol=1e-4)


def test_relief_of_constant_height_is_a_wall(images):
    texture = pyramid(images[0])
    corner, right, down = np.array([-2.0, -2, 6]), np.array([4.0, 0, 0]), np.array([0, 4.0, 0])
    bumpy = relief(texture, corner, right, down, np.full((9, 9), 0.5))
    plain = quad(texture, corner - [0, 0, 0.5], right, down)
    sky = np.zeros((240, 320, 3), dtype=np.uint8)
    ours, theirs = see([bumpy], LEFT), see([plain], LEFT)
    assert np.mean((ours.face == NOTHING) != (theirs.face == NOTHING)) < 0.01
    both = (ours.face != NOTHING) & (theirs.face != NOTHING)
    np.testing.assert_allclose(ours.inverse_depth[both], theirs.inverse_depth[both], rtol=1e-4)
    difference = np.abs(colour([bumpy], ours, sky).astype(int) - colour([plain], theirs, sky))[both]
    assert difference.mean() < 1.5


def test_relief_pixels_agree(images, rng):
    height = 0.25 * np.sin(np.linspace(0, 9, 33))[:, None] * np.cos(np.linspace(0, 7, 33))[None]
    surface = relief(pyramid(images[0]), np.array([-3.0, -3, 5]), np.array([6.0, 0, 0]), np.array([0, 6.0, 0]), height)
    correlations = patch_correlations(pair_of([surface]))
    assert len(correlations) > 100 and np.median(correlations) > 0.98


@pytest.mark.parametrize("seed", range(6))
def test_there_and_back(images, seed):
    pair = ParallaxSource(CLEAN).sample(images, np.random.default_rng(seed)).pair()
    points = grid_points(pair.image0.shape[1], pair.image0.shape[0], 40)
    mapped, visible = pair.one_from_zero(points)
    assert visible.any() and not visible.all()
    back, again = pair.zero_from_one(mapped[visible])
    # Two facets of a relief meet between pixels: the way back may take the other one's plane.
    error = np.linalg.norm(back - points[visible], axis=1)
    assert np.nanmean(error < 0.01) > 0.9 and np.nanpercentile(error, 99) < 0.5
    assert again.mean() > 0.9


def test_pixels_agree(images):
    generator = ParallaxSource(replace(CLEAN, baseline=25, zoom=1.5))
    pairs = [generator.sample(images, np.random.default_rng(k)).pair() for k in range(10)]
    assert_pixels_agree(pairs, fewest=300)


def test_overlap_is_bounded_and_scenes_have_parallax(images):
    """No homography explains the motion, unlike in the other generator."""
    import cv2

    generator = ParallaxSource(CLEAN)
    unexplained = []
    for seed in range(10):
        pair = generator.sample(images, np.random.default_rng(seed)).pair()
        zero, one = shared(pair)
        assert np.sqrt(zero * one) > CLEAN.overlap[0] - 0.08  # rims are not counted as visible here
        points = grid_points(pair.image0.shape[1], pair.image0.shape[0], 40)
        mapped, visible = pair.one_from_zero(points)
        _, inliers = cv2.findHomography(points[visible], mapped[visible], cv2.RANSAC, 3.0)
        unexplained.append(1 - inliers.mean())
    assert np.mean(unexplained) > 0.3


def test_same_seed_same_pair(images):
    a, b = (ParallaxSource().sample(images, np.random.default_rng(3)).pair() for _ in range(2))
    np.testing.assert_array_equal(a.image0, b.image0)
    np.testing.assert_array_equal(a.image1, b.image1)


def test_points_out_of_the_frame_are_unknown(images):
    pair = pair_of([wall(pyramid(images[0]), 6, 30)])
    mapped, visible = pair.one_from_zero(np.array([[-5.0, 10], [1000, 10], [160, 120]]))
    assert visible.tolist() == [False, False, True]
    assert np.isnan(mapped[:2]).all()


def test_a_group_gives_all_its_pairs(images):
    config = replace(CLEAN, views=4, baseline=25, zoom=1.5)
    counts = []
    for seed in range(3):
        group = ParallaxSource(config).sample(images, np.random.default_rng(seed))
        counts.append(len(group.pairs))
        for i, j in group.pairs:
            agreement = patch_correlations(group.pair(i, j))
            assert len(agreement) < 20 or np.median(agreement) > 0.85
    assert np.mean(counts) > 3
