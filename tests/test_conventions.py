"""Pins docs/conventions.md: other programs rely on every line of it."""

import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import linglue
from linglue.geometry.pixels import resize_points
from linglue.io.images import shrink
from linglue.io.npz import load_matches, save_features, save_matches

BLOBS = np.array([[40.0, 25.0], [100.25, 30.5], [170.5, 60.75], [60.75, 90.25], [130.0, 110.5], [200.5, 120.0]])
SIZE = linglue.ImageSize(240, 150)


@pytest.fixture(scope="module")
def matcher() -> linglue.Matcher:
    """SIFT's keypoints are the centres of blobs, which have a scale and an angle."""
    return linglue.Matcher.from_pretrained("sift")


def blobs(centres: np.ndarray = BLOBS, size: tuple[int, int] = SIZE, sigma: float = 4.0) -> np.ndarray:
    """(H, W, 3) uint8: Gaussian spots, pixel (row r, column c) sampled at x = c, y = r."""
    y, x = np.mgrid[: size[1], : size[0]]
    light = sum(np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * sigma**2)) for cx, cy in centres)
    return np.repeat(np.rint(40 + 180 * light).clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def offsets(features: linglue.Features, centres: np.ndarray = BLOBS) -> np.ndarray:
    """(K, 2) from each true centre to the closest keypoint."""
    difference = features.keypoints[None] - centres[:, None]
    return difference[np.arange(len(centres)), np.linalg.norm(difference, axis=2).argmin(1)]


def test_points_are_x_y_with_the_centre_of_the_first_pixel_at_zero(matcher):
    features = matcher.extract(blobs())
    assert features.keypoints.dtype == np.float32
    assert np.abs(offsets(features)).max() < 0.15
    assert np.abs(offsets(features).mean(0)).max() < 0.05  # half a pixel of shift would show here


def test_image_size_is_width_height(matcher):
    features = matcher.extract(blobs())
    assert features.image_size == (240, 150)
    assert (features.image_size.width, features.image_size.height) == (240, 150)


def test_resizing_maps_pixel_areas_onto_each_other(matcher):
    points = np.array([[-0.5, -0.5], [0.0, 0.0], [239.5, 149.5]], np.float32)
    mapped = resize_points(points, np.array([0.5, 0.5], np.float32))
    np.testing.assert_allclose(mapped, [[-0.5, -0.5], [-0.25, -0.25], [119.5, 74.5]])
    features = matcher.extract(blobs(), resize=120)
    assert features.image_size == SIZE
    assert np.abs(offsets(features)).max() < 0.4
    assert np.abs(offsets(features).mean(0)).max() < 0.1


def test_resize_is_the_longer_side_and_never_enlarges(matcher):
    assert shrink(blobs(), 120).shape == (75, 120, 3)
    assert shrink(blobs(), 1000).shape == (150, 240, 3)
    np.testing.assert_array_equal(
        matcher.extract(blobs(), resize=1000).keypoints, matcher.extract(blobs(), resize=None).keypoints
    )


def test_points_are_in_the_image_with_its_exif_rotation_applied(matcher, tmp_path):
    stored = PillowImage.fromarray(np.ascontiguousarray(np.rot90(blobs())))  # as a camera held upright stores it
    exif = stored.getexif()
    exif[274] = 6
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=98)
    features = matcher.extract(tmp_path / "turned.jpg")
    assert stored.size == (150, 240) and features.image_size == SIZE
    assert np.abs(offsets(features)).max() < 0.15


def test_images_in_memory_are_uint8_numpy_or_float_torch(matcher, pair):
    rgb = pair.image0[:200, :300]
    tensor = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255  # (C, H, W) in [0, 1]
    np.testing.assert_array_equal(matcher.extract(tensor).keypoints, matcher.extract(rgb).keypoints)
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    np.testing.assert_array_equal(matcher.extract(grey).keypoints, matcher.extract(rgb).keypoints)
    with pytest.raises(linglue.LinGlueError, match=re.escape("(H, W[, C]) uint8")):
        matcher.extract(rgb.astype(np.float64))


def turned_partners(before: linglue.Features, after: linglue.Features) -> tuple[np.ndarray, np.ndarray]:
    """Indices of keypoints found again at the same place after a quarter turn clockwise on the screen."""
    x, y = before.keypoints.T
    expected = np.stack([before.image_size.height - 1 - y, x], axis=1)
    distance = np.linalg.norm(expected[:, None] - after.keypoints[None], axis=2)
    rows = np.flatnonzero(distance.min(1) < 0.2)
    return rows, distance.argmin(1)[rows]


def test_angles_are_radians_from_x_towards_y(matcher, pair):
    """A quarter turn clockwise on the screen adds π/2."""
    before = matcher.extract(pair.image0, 500)
    after = matcher.extract(np.ascontiguousarray(np.rot90(pair.image0, -1)), 500)
    rows, columns = turned_partners(before, after)
    turn = (after.oris[columns] - before.oris[rows]) % (2 * np.pi)
    assert len(rows) > 200
    assert np.median(np.abs(turn - np.pi / 2)) < 0.03
    assert (np.abs(turn - np.pi / 2) < 0.1).mean() > 0.7  # the rest are keypoints with two orientations


def test_angle_zero_points_along_x(matcher):
    """Brightness that grows to the right has its gradient along +x, downwards along +y."""
    y, x = np.mgrid[:120, :160]
    spot = np.exp(-((x - 80) ** 2 + (y - 60) ** 2) / 200)
    for direction, expected in ((x - 80, 0.0), (y - 60, np.pi / 2)):
        image = np.rint(128 + 100 * spot * direction / 12).clip(0, 255).astype(np.uint8)
        features = matcher.extract(np.where(spot > 0.01, image, 128).astype(np.uint8))
        middle = np.linalg.norm(features.keypoints - [80, 60], axis=1) < 25
        turn = (features.oris[middle] - expected + np.pi) % (2 * np.pi) - np.pi
        assert middle.any() and np.abs(turn).min() < 0.15


def test_scales_and_angles_are_opencvs_size_and_angle_in_radians(matcher, pair):
    """By position, as how OpenCV is set up may move keypoints a little and change a few."""
    found = cv2.SIFT.create(contrastThreshold=0.02).detect(cv2.cvtColor(pair.image0, cv2.COLOR_RGB2GRAY), None)
    points, sizes = np.array([k.pt for k in found]), np.array([k.size for k in found])
    angles = np.deg2rad([k.angle for k in found])
    features = matcher.extract(pair.image0, 300)
    distance = np.linalg.norm(features.keypoints[:, None] - points, axis=2)  # (N, M)
    partner, close = distance.argmin(1), distance.min(1) < 0.6
    assert close.sum() > 100
    assert np.median(np.abs(features.scales / sizes[partner] - 1)[close]) < 0.1
    turn = (features.oris - angles[partner] + np.pi) % (2 * np.pi) - np.pi
    assert np.median(np.abs(turn[close])) < 0.1


@pytest.mark.parametrize("resize", [None, 120])
@pytest.mark.parametrize("sigma", [4.0, 8.0])
def test_scales_are_diameters_in_original_pixels(matcher, sigma, resize):
    """A Gaussian spot answers strongest to a blob detector of its own sigma; its diameter is 2 sigma."""
    features = matcher.extract(blobs(np.array([[120.0, 75.0]]), sigma=sigma), resize=resize)
    middle = np.linalg.norm(features.keypoints - [120, 75], axis=1) < 1
    assert features.scales[middle].max() == pytest.approx(2 * sigma, rel=0.25)


def test_indices_are_int64_and_points_float32(matcher, pair):
    result = matcher.match(pair.image0, pair.image1, 500)
    assert result.indices.dtype == np.int64
    assert result.points0.dtype == result.points1.dtype == result.scores.dtype == np.float32
    np.testing.assert_array_equal(result.points0, result.features0.keypoints[result.indices[:, 0]])
    np.testing.assert_array_equal(result.points1, result.features1.keypoints[result.indices[:, 1]])


def test_unmatched_is_minus_one(matcher, pair):
    features = [matcher.extract(image, 300) for image in (pair.image0, pair.image1)]
    with torch.inference_mode():
        out = matcher.network({f"image{i}": f.tensors() for i, f in enumerate(features)})
    for one, other in ((out["matches0"][0], out["matches1"][0]), (out["matches1"][0], out["matches0"][0])):
        assert one.dtype == torch.int64
        matched = (one >= 0).nonzero()[:, 0]
        assert 0 < len(matched) < len(one) and (one[one < 0] == -1).all()
        assert (other[one[matched]] == matched).all()


def test_files_hold_whole_floats_and_wide_indices(matcher, pair, tmp_path):
    result = matcher.match(pair.image0, pair.image1, 300)
    save_features(tmp_path / "f.npz", result.features0)
    save_matches(tmp_path / "m.npz", result)
    with np.load(tmp_path / "f.npz") as file:
        assert file["keypoints"].dtype == np.float32
    with np.load(tmp_path / "m.npz") as file:
        assert file["keypoints0"].dtype == file["points0"].dtype == np.float32
        assert file["indices"].dtype.itemsize >= 4 and file["matches"].dtype.itemsize >= 4
        assert file["matches"].min() == -1
    np.testing.assert_array_equal(load_matches(tmp_path / "m.npz").points0, result.points0)


def test_another_kind_is_refused_and_both_are_named(matcher, pair):
    features = matcher.extract(pair.image0, 100)
    with pytest.raises(linglue.LinGlueError, match=r"'disk'.*'sift'"):
        matcher.match(features, replace(features, kind="disk"))
    with pytest.raises(linglue.LinGlueError, match=r"'unknown'.*'sift'"):
        matcher.match(replace(features, kind="unknown"), features)


def test_another_descriptor_size_is_refused_and_both_are_named(matcher, pair):
    features = matcher.extract(pair.image0, 100)
    with pytest.raises(linglue.LinGlueError, match=r"64.*128"):
        matcher.match(features, replace(features, descriptors=features.descriptors[:, :64]))


def test_same_input_same_output_whatever_the_global_seed(matcher, pair):
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (the global state is what must not matter)
        results.append(matcher.match(pair.image0, pair.image1, 500))
    np.testing.assert_array_equal(results[0].indices, results[1].indices)
    np.testing.assert_array_equal(results[0].scores, results[1].scores)


def test_swapping_the_images_swaps_the_matches(matcher, pair):
    forward = matcher.match(pair.image0, pair.image1, 500)
    backward = matcher.match(pair.image1, pair.image0, 500)
    assert {tuple(p) for p in forward.indices} == {tuple(p[::-1]) for p in backward.indices}
