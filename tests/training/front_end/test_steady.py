"""Positions from all sides: every view leads back to the image, and what views disagree about is left out."""

import cv2
import numpy as np
import pytest
from skimage import data

from linglue.features.linpoint import PACKAGED, LinPoint, fused, load_linpoint
from linglue.features.sift import Sift
from linglue.io.images import read_image, shrink
from linglue.training.front_end.lessons import LONGER_SIDE, Lessons
from linglue.training.front_end.steady import ENOUGH, VIEWS, back_from, seen_as, steady
from linglue.types import ImageSize


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_leads_back_to_the_image(view):
    """A black square on white: its middle in the view is its middle in the image."""
    image = np.full((60, 100, 3), 255, np.uint8)
    image[20:30, 60:70] = 0
    shown = 255 - seen_as(image, view)[..., 0].astype(float)
    y, x = np.mgrid[: shown.shape[0], : shown.shape[1]]
    middle = np.array([[(x * shown).sum(), (y * shown).sum()]]) / shown.sum()
    np.testing.assert_allclose(back_from(middle, view, ImageSize(100, 60)), [[64.5, 24.5]], atol=0.05)


def test_views_differ():
    image = data.astronaut()[:120, :200]
    shown = [seen_as(image, view) for view in VIEWS]
    for a in range(len(VIEWS)):
        for b in range(a):
            assert shown[a].shape != shown[b].shape or not np.array_equal(shown[a], shown[b])


def test_steady_keypoints_do_not_depend_on_the_side_they_are_seen_from():
    net = fused(load_linpoint(PACKAGED))
    image = data.astronaut()[:256, :320]
    points = LinPoint().extract(image, 300).keypoints
    places, share = steady(net, image, points)
    kept = np.isfinite(places[:, 0])
    assert 100 < kept.sum() < len(points)
    assert (share[kept] >= ENOUGH / len(VIEWS) - 1e-6).all() and (share[~kept] < ENOUGH / len(VIEWS)).all()
    assert np.linalg.norm(places - points, axis=1)[kept].max() < 6
    mirrored = np.ascontiguousarray(image[:, ::-1])
    back, _ = steady(net, mirrored, np.array([319, 0], np.float32) + np.array([-1, 1], np.float32) * points)
    there = np.stack([319 - back[:, 0], back[:, 1]], axis=1)
    both = kept & np.isfinite(there[:, 0])
    assert both.sum() > 0.8 * kept.sum()
    assert np.median(np.linalg.norm(places - there, axis=1)[both]) < 0.5


def test_nothing_is_steady_where_nothing_is():
    net = fused(load_linpoint(PACKAGED))
    places, share = steady(net, np.full((96, 96, 3), 128, np.uint8), np.array([[40, 40]], np.float32))
    assert np.isnan(places).all() and share.tolist() == [0]
    places, share = steady(net, data.astronaut()[:96, :96], np.zeros((0, 2), np.float32))
    assert places.shape == (0, 2) and share.shape == (0,)


def test_steady_lessons_are_kept_beside_those_of_the_teacher(tmp_path):
    image = tmp_path / "coffee.png"
    cv2.imwrite(str(image), data.coffee()[:200, :300])
    plain = Lessons(tmp_path / "lessons", [image], "0" * 64, 300)
    plain.prepare(Sift())
    lessons = Lessons(tmp_path / "lessons", [image], "0" * 64, 300, steady=PACKAGED)
    lessons.prepare(Sift())
    assert lessons.fingerprint != plain.fingerprint
    assert 10 < len(lessons[0].keypoints) < len(plain[0].keypoints)
    places, _ = steady(fused(load_linpoint(PACKAGED)), shrink(read_image(image), LONGER_SIDE), plain[0].keypoints)
    np.testing.assert_allclose(lessons[0].keypoints, places[np.isfinite(places[:, 0])], atol=0.02)
    assert len(lessons[0].descriptors) == len(lessons[0].scores) == len(lessons[0].keypoints)
