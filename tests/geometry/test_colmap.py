"""COLMAP's conventions, measured: its own SIFT against OpenCV's on the same image."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.geometry.colmap import (
    bytes_from_root_sift,
    colmap_from_pixel,
    keypoint_rows,
    keypoint_shapes,
    pixel_from_colmap,
    root_sift_from_bytes,
)
from linglue.io.colmap.database import open_database, read_features, read_images
from linglue.types import Features

pycolmap = pytest.importorskip("pycolmap")


def features(count: int = 5, shapes: bool = True) -> Features:
    random = np.random.default_rng(0)
    return Features(
        keypoints=random.uniform(0, 4000, (count, 2)),
        descriptors=np.zeros((count, 0)),
        image_size=(5000, 4000),
        scales=random.uniform(1, 30, count) if shapes else None,
        oris=random.uniform(-3, 3, count) if shapes else None,
    )


def test_the_origin_is_half_a_pixel_away():
    centre_of_first_pixel = np.zeros((1, 2), np.float32)
    assert colmap_from_pixel(centre_of_first_pixel).tolist() == [[0.5, 0.5]]
    assert colmap_from_pixel(centre_of_first_pixel).dtype == np.float32
    assert pixel_from_colmap(colmap_from_pixel(centre_of_first_pixel)).tolist() == [[0, 0]]


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("shapes", [True, False])
def test_keypoints_come_back(count, shapes):
    before = features(count, shapes)
    rows = keypoint_rows(before)
    assert rows.shape == (count, 4 if shapes else 2) and rows.dtype == np.float32
    points, scales, oris = keypoint_shapes(rows)
    assert np.allclose(points, before.keypoints, atol=5e-4)
    if shapes:
        assert np.allclose(scales, before.scales) and np.allclose(oris, before.oris)
    else:
        assert scales is None and oris is None


def test_four_columns_and_six_are_the_same_to_colmap():
    rows = keypoint_rows(features())
    scale, angle = rows[:, 2], rows[:, 3]
    sin, cos = np.sin(angle), np.cos(angle)
    affine = np.column_stack([rows[:, :2], scale * cos, -scale * sin, scale * sin, scale * cos])
    for from_affine, from_scale in zip(keypoint_shapes(affine), keypoint_shapes(rows), strict=True):
        assert np.allclose(from_affine, from_scale, atol=1e-4)
    keypoint = pycolmap.FeatureKeypoint(**dict(zip(("a11", "a12", "a21", "a22"), affine[0, 2:], strict=True)))
    assert keypoint.compute_scale() == pytest.approx(scale[0], rel=1e-5)
    assert keypoint.compute_orientation() == pytest.approx(angle[0], rel=1e-5)


def test_other_columns_are_refused():
    with pytest.raises(LinGlueError, match="3 columns, expected 2, 4 and 6"):
        keypoint_shapes(np.zeros((1, 3), np.float32))


def test_descriptors_survive_rounding():
    raw = np.random.default_rng(0).exponential(size=(50, 128)) ** 2
    before = np.sqrt(raw / raw.sum(1, keepdims=True)).astype(np.float32)
    after = root_sift_from_bytes(bytes_from_root_sift(before))
    assert np.allclose(np.linalg.norm(after, axis=1), 1, atol=1e-6)
    assert (before * after).sum(1).min() > 0.999
    assert root_sift_from_bytes(np.zeros((1, 128), np.uint8)).tolist() == [[0.0] * 128]


def test_colmaps_own_sift_is_what_opencv_finds(tmp_path, images, pair):
    options = pycolmap.FeatureExtractionOptions()
    options.num_threads, options.use_gpu = 1, False
    pycolmap.logging.minloglevel = pycolmap.logging.ERROR.value
    pycolmap.extract_features(tmp_path / "database.db", images[0].parent, ["a.png"], extraction_options=options)
    with open_database(tmp_path / "database.db") as database:
        theirs = read_features(database, read_images(database)["a.png"])
    ours = make_extractor("sift", None, "cpu").extract(pair.image0, 8192, None)
    assert theirs.kind == "sift" and theirs.image_size == ours.image_size
    candidates = cKDTree(ours.keypoints).query_ball_point(theirs.keypoints, 1.5)
    partners = [
        (i, max(near, key=lambda j: ours.descriptors[j] @ theirs.descriptors[i]))
        for i, near in enumerate(candidates)
        if near
    ]
    index0, index1 = np.array(partners).T
    similar = (theirs.descriptors[index0] * ours.descriptors[index1]).sum(1)
    assert np.median(similar) > 0.99  # same normalisation, same order of the histogram's entries
    index0, index1 = index0[similar > 0.95], index1[similar > 0.95]
    assert len(index0) > 1000
    assert np.abs(np.median(theirs.keypoints[index0] - ours.keypoints[index1], axis=0)).max() < 0.02
    assert ours.scales is not None and theirs.scales is not None
    assert ours.oris is not None and theirs.oris is not None
    assert np.median(theirs.scales[index0] / ours.scales[index1]) == pytest.approx(1, abs=0.03)
    turn = (theirs.oris[index0] - ours.oris[index1] + np.pi) % (2 * np.pi) - np.pi
    assert np.abs(np.percentile(turn, [25, 50, 75])).max() < 0.05
