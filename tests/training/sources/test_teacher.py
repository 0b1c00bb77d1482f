"""Labels of a teacher: what is kept, and how they reach other keypoints."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.training.sources.labels import (
    ALIKED_FILE,
    LIGHTGLUE_FILE,
    LabelConfig,
    LightGlueTeacher,
    choose_pairs,
    label_scene,
    verified,
)
from linglue.training.sources.teacher import LocalAffineMapper, TeacherConfig, TeacherSource, eight_point

CONFIG = TeacherConfig(())
PLACES = [
    Path(folder)
    for folder in (
        os.environ.get("LINGLUE_TEACHER"),
        torch.hub.get_dir() + "/checkpoints",
        "/tmp/peers/torch_home/hub/checkpoints",
    )
    if folder and all((Path(folder) / file).is_file() for file in (ALIKED_FILE, LIGHTGLUE_FILE))
]


def two_views(count: int, rng: np.random.Generator, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Points of two 640x480 images that see the same relief."""
    pixels = rng.uniform(20, 460, (count, 2)) * [1.3, 1.0]
    depth = 6 + np.sin(pixels[:, 0] / 90) + np.cos(pixels[:, 1] / 70)
    world = np.concatenate([(pixels - [320, 240]) / 500 * depth[:, None], depth[:, None]], axis=1)
    moved = world - [0.5 * shift, 0.1, 0.3]
    return pixels.astype(np.float32), (500 * moved[:, :2] / moved[:, 2:] + [320, 240]).astype(np.float32)


class Stub:
    """Knows each image by its grey; every pair with the unlucky one shows nothing in common."""

    def __init__(self, unlucky: int) -> None:
        self.unlucky = unlucky
        self.asked: list[tuple[int, int]] = []

    def features(self, image: np.ndarray) -> int:
        return int(image[0, 0, 0]) // 10

    def match(self, zero: int, one: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append((zero, one))
        rng = np.random.default_rng(one)
        points0, points1 = two_views(300, rng, shift=one - zero)
        if self.unlucky in (zero, one):
            points1 = rng.permutation(points1)
        points1[:30] += rng.uniform(20, 90, (30, 2)).astype(np.float32)
        return points0, points1


@pytest.fixture
def house(tmp_path) -> Path:
    folder = tmp_path / "house"
    folder.mkdir()
    for number in range(4):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((480, 640, 3), 10 * number, dtype=np.uint8))
    return folder


def test_only_what_geometry_explains_is_kept(house, tmp_path):
    stub = Stub(unlucky=3)
    assert label_scene(house, tmp_path / "labels", stub, progress=False) == 3
    assert sorted(stub.asked) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert label_scene(house, tmp_path / "labels", stub, progress=False) == 3
    assert len(stub.asked) == 6  # nothing is asked twice

    generator = TeacherSource(
        TeacherConfig(((str(house), str(tmp_path / "labels")),), relit=0, smaller=0, rotated=0, views=2)
    )
    for seed in range(4):
        group = generator.sample([], np.random.default_rng(seed))
        pair = group.pair()
        zero, one = (int(i[0, 0, 0]) // 10 for i in (pair.image0, pair.image1))
        assert 3 not in (zero, one) and group.shows == frozenset({"images:house"})
        start, end = two_views(300, np.random.default_rng(max(zero, one)), shift=abs(one - zero))
        if zero > one:
            start, end = end, start
        mapped, visible = pair.one_from_zero(start[30:])
        assert visible.mean() > 0.5
        error = np.linalg.norm(mapped - end[30:], axis=1)[visible]
        assert np.median(error) < 0.05 and error.max() < 4


def test_a_pair_at_another_hour_and_from_further_away(house, tmp_path):
    """Labels follow an image that is shrunk, and so does the epipolar geometry; light moves nothing."""
    label_scene(house, tmp_path / "labels", Stub(unlucky=3), progress=False)
    source = TeacherSource(
        TeacherConfig(((str(house), str(tmp_path / "labels")),), relit=1, smaller=1, rotated=0, views=2)
    )
    sizes = set()
    for seed in range(4):
        group = source.sample([], np.random.default_rng(seed))
        sizes |= {image.shape[1] for image in group.images}
        pair, matrix = group.pair(), group.fundamental(0, 1)
        zoom = [image.shape[1] / 640 for image in group.images]
        grid = np.stack(np.meshgrid(np.arange(30, 600, 9), np.arange(30, 450, 9)), axis=-1).reshape(-1, 2) * zoom[0]
        mapped, visible = pair.one_from_zero(grid)
        assert visible.sum() > 100 and mapped[visible].max() < 640 * zoom[1] + 40
        first, second = (np.pad(p[visible], ((0, 0), (0, 1)), constant_values=1) for p in (grid, mapped))
        line = first @ matrix.T
        distance = np.abs((line * second).sum(1)) / np.linalg.norm(line[:, :2], axis=1)
        assert np.median(distance) < 1.0
    assert len(sizes) > 3 and max(sizes) <= 640 and min(sizes) >= 320
    assert not np.array_equal(group.images[0], np.full_like(group.images[0], group.images[0][0, 0, 0]))


def test_a_group_has_every_labelled_pair_of_its_images(house, tmp_path):
    """Four images of which one fails with all others: three are drawn, and rotated ones keep their labels."""
    label_scene(house, tmp_path / "labels", Stub(unlucky=3), progress=False)
    source = TeacherSource(
        TeacherConfig(((str(house), str(tmp_path / "labels")),), relit=0, smaller=0.5, rotated=1, views=4)
    )
    group = source.sample([], np.random.default_rng(0))
    assert len(group.images) == 3 and sorted(tuple(sorted(p)) for p in group.pairs) == [(0, 1), (0, 2), (1, 2)]
    for i, j in group.pairs:
        pair, matrix = group.pair(i, j), group.fundamental(i, j)
        grid = np.stack(np.meshgrid(np.arange(10, 600, 9), np.arange(10, 450, 9)), axis=-1).reshape(-1, 2)
        mapped, visible = pair.one_from_zero(grid)
        assert visible.sum() > 50
        height, width = pair.image1.shape[:2]
        assert (mapped[visible] > -30).all() and (mapped[visible] < np.array([width, height]) + 30).all()
        back, seen = pair.zero_from_one(mapped[visible])
        assert np.median(np.linalg.norm(back - grid[visible], axis=1)[seen]) < 0.5
        first, second = (np.pad(p[visible], ((0, 0), (0, 1)), constant_values=1) for p in (grid, mapped))
        line = first @ matrix.T
        assert np.median(np.abs((line * second).sum(1)) / np.linalg.norm(line[:, :2], axis=1)) < 1.0


def test_labels_turn_with_the_image(tmp_path):
    """A dot stays under its label, however the image is shrunk and rotated."""
    image = np.zeros((400, 600, 3), np.uint8)
    cv2.circle(image, (210, 170), 6, (255, 255, 255), -1)
    source = TeacherSource.__new__(TeacherSource)
    source.config = TeacherConfig((), relit=0, smaller=1, rotated=1)
    for seed in range(5):
        view, view_from_image = source._changed(image, np.random.default_rng(seed))
        weight = view[..., 0].astype(float)
        y, x = np.mgrid[: view.shape[0], : view.shape[1]]
        centre = np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()
        np.testing.assert_allclose(view_from_image[:, :2] @ [210, 170] + view_from_image[:, 2], centre, atol=0.2)


def test_two_images_of_too_few_matches_have_no_epipolar_geometry():
    assert eight_point(np.zeros((7, 2), np.float32), np.zeros((7, 2), np.float32)) is None


def test_too_few_or_too_small_a_share(rng):
    points0, points1 = two_views(200, rng)
    assert len(verified(points0, points1, LabelConfig())[0]) == 200
    assert len(verified(points0[:25], points1[:25], LabelConfig())[0]) == 0
    mixed = np.concatenate([points1[:70], rng.permutation(points1[70:])])
    assert len(verified(points0, mixed, LabelConfig(min_share=0.9))[0]) == 0
    assert len(verified(points0[:0], points1[:0], LabelConfig())[0]) == 0


def test_neighbours_and_far_pairs_are_labelled():
    few = LabelConfig(max_pairs=20)
    pairs = choose_pairs(30, few)
    assert len(set(pairs)) == 20 and all(0 <= i < j < 30 for i, j in pairs)
    distance = np.array([j - i for i, j in pairs])
    assert (distance == 1).sum() >= 10 and (distance > 5).sum() >= 4
    assert choose_pairs(4, few) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_more_pairs_may_be_labelled_later(house, tmp_path):
    stub = Stub(unlucky=9)
    assert label_scene(house, tmp_path / "labels", stub, LabelConfig(max_pairs=2), progress=False) == 2
    assert label_scene(house, tmp_path / "labels", stub, LabelConfig(max_pairs=6), progress=False) == 6
    assert len(stub.asked) == 6


def test_labels_are_part_of_the_settings(house, tmp_path):
    label_scene(house, tmp_path / "labels", Stub(unlucky=9), LabelConfig(max_pairs=2), progress=False)
    config = TeacherConfig(((str(house), str(tmp_path / "labels")),))
    before = TeacherSource(config)
    label_scene(house, tmp_path / "labels", Stub(unlucky=9), LabelConfig(max_pairs=6), progress=False)
    after = TeacherSource(config)
    assert (len(before), len(after)) == (2, 6) and before.settings != after.settings


def test_a_match_reaches_its_surroundings_only(rng):
    start = rng.uniform(0, 400, (400, 2))
    turn = 1.4 * np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
    mapper = LocalAffineMapper(start, start @ turn.T + [30, 5], CONFIG)
    points = rng.uniform(-100, 500, (2000, 2))
    distance = np.linalg.norm(points[:, None] - start[None], axis=2).min(axis=1)
    mapped, visible = mapper(points)
    np.testing.assert_array_equal(visible, distance <= CONFIG.radius)
    np.testing.assert_array_equal(np.isfinite(mapped).all(axis=1), visible)
    np.testing.assert_allclose(mapped[visible], (points @ turn.T + [30, 5])[visible], atol=1e-6)


def test_matches_that_disagree_say_nothing(rng):
    start = np.stack(np.meshgrid(np.arange(0, 400, 20.0), np.arange(0, 400, 20.0)), axis=-1).reshape(-1, 2)
    noisy = start + rng.normal(0, 8, start.shape)
    assert LocalAffineMapper(start, noisy, CONFIG)(start)[1].mean() < 0.05
    end = start + np.array([50.0, 0])
    end[57] += [0, 25]  # one that does not follow its neighbours
    mapped, visible = LocalAffineMapper(start, end, CONFIG)(start)
    assert not visible[57] and np.isnan(mapped[57]).all() and visible.mean() > 0.9
    line = start * [1, 0]
    assert not LocalAffineMapper(line, line, CONFIG)(line)[1].any()
    assert not LocalAffineMapper(start[:2], end[:2], CONFIG)(start)[1].any()
    alone = np.array([[0.0, 0], [200, 0], [0, 200], [200, 200]])
    assert not LocalAffineMapper(alone, alone, CONFIG)(alone)[1].any()
    assert LocalAffineMapper(start, end, CONFIG)(np.zeros((0, 2)))[0].shape == (0, 2)


def test_what_is_missing_is_named(house, tmp_path):
    with pytest.raises(LinGlueError, match="nowhere: no such folder"):
        label_scene(tmp_path / "nowhere", tmp_path / "labels", Stub(9))
    with pytest.raises(LinGlueError, match="holds 0 images"):
        (tmp_path / "empty").mkdir()
        label_scene(tmp_path / "empty", tmp_path / "labels", Stub(9))
    with pytest.raises(LinGlueError, match="labels: no such folder"):
        TeacherSource(TeacherConfig(((str(house), str(tmp_path / "labels")),)))
    with pytest.raises(LinGlueError, match="no pair with verified labels"):
        TeacherSource(TeacherConfig(((str(house), str(tmp_path / "empty")),)))
    (tmp_path / "empty" / "a.npz").write_bytes(b"nonsense")
    with pytest.raises(LinGlueError, match=r"a\.npz: not a file of teacher's labels"):
        TeacherSource(TeacherConfig(((str(house), str(tmp_path / "empty")),)))
    with pytest.raises(LinGlueError, match=f"{ALIKED_FILE}: no such weights file"):
        LightGlueTeacher(tmp_path)


@pytest.mark.skipif(not PLACES, reason=f"no {ALIKED_FILE} and {LIGHTGLUE_FILE} in LINGLUE_TEACHER or torch's cache")
def test_the_real_teacher(images):
    image = cv2.resize(images[0], (320, 320), interpolation=cv2.INTER_AREA)
    matrix = np.array([[0.9, -0.2, 40], [0.15, 0.95, -20]])
    turned = cv2.warpAffine(image, matrix, (320, 320))
    teacher = LightGlueTeacher(PLACES[0], keypoints=300)
    points0, points1 = teacher.match(teacher.features(image), teacher.features(turned))
    error = np.linalg.norm(points0 @ matrix[:, :2].T + matrix[:, 2] - points1, axis=1)
    assert len(error) > 80 and np.median(error) < 1 and (error < 3).mean() > 0.9
