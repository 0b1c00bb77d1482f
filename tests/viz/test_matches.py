"""Drawings: sizes, colours at known pixels, and files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.types import Features, Matches
from linglue.viz import (
    compare,
    correctness,
    draw_keypoints,
    draw_matches,
    save_image,
)
from linglue.viz.canvas import GAP, HEADER, MAX_HEIGHT, MAX_WIDTH

GREY = np.full((120, 160, 3), 100, dtype=np.uint8)
ONE = np.array([[40.0, 60.0]])  # a match across two GREY images is a horizontal line in row 60


def reddish(pixel: np.ndarray) -> bool:
    return bool(pixel[0] > 180 and pixel[1] < 90 and pixel[2] < 90)


def greenish(pixel: np.ndarray) -> bool:
    return bool(pixel[1] > 180 and pixel[0] < 90 and pixel[2] < 110)


def features(count: int, **more: np.ndarray) -> Features:
    points = np.random.default_rng(0).uniform(10, 110, (count, 2))
    return Features(keypoints=points, descriptors=np.ones((count, 4)), image_size=(160, 120), **more)


def matches(**more: object) -> Matches:
    side = features(3)
    return Matches(
        points0=side.keypoints,
        points1=side.keypoints,
        indices=np.stack([np.arange(3)] * 2, axis=1),
        scores=np.array([0.9, 0.5, 0.1], dtype=np.float32),
        features0=side,
        features1=side,
        pair_score=0.8,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("value", "check"), [(1.0, greenish), (0.0, reddish)])
def test_confidence_colours(value, check):
    canvas = draw_matches(GREY, GREY, ONE, ONE, values=[value])
    assert canvas.shape == (120, 160 + GAP + 160, 3)
    assert canvas.dtype == np.uint8
    for column in (40, 100, 160, 168 + 40):  # end, line, gap, end
        assert check(canvas[60, column])
    assert (canvas[60, 30] == canvas[10, 30]).all()  # nothing before the end
    assert (canvas[50, 100] == canvas[10, 30]).all()


@pytest.mark.parametrize(("correct", "check"), [(True, greenish), (False, reddish), (1.0, greenish), (0.0, reddish)])
def test_correctness_colours(correct, check):
    assert check(draw_matches(GREY, GREY, ONE, ONE, correct=[correct])[60, 100])


def test_wrong_matches_lie_on_top():
    for correct in ([False, True], [True, False]):
        canvas = draw_matches(GREY, GREY, np.repeat(ONE, 2, 0), np.repeat(ONE, 2, 0), correct=correct)
        assert reddish(canvas[60, 100])
        assert reddish(canvas[60, 40])


def test_confident_matches_lie_on_top():
    for values in ([0.0, 1.0], [1.0, 0.0]):
        canvas = draw_matches(GREY, GREY, np.repeat(ONE, 2, 0), np.repeat(ONE, 2, 0), values=values)
        assert greenish(canvas[60, 100])


def test_correctness_of_errors():
    degrees = correctness([0.0, 3.0, 6.0, 100.0, np.inf, np.nan], threshold=3.0)
    assert degrees.tolist() == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_steep_lines_and_points_outside_are_drawn():
    start, end = np.array([[150.0, 0.0]]), np.array([[2.0, 119.0]])
    canvas = draw_matches(GREY, GREY, start, end, values=[1.0])
    assert greenish(canvas[60, 160])  # steep: from (150, 0) to (170, 119)
    far = np.array([[-1e6, 60.0]])
    assert greenish(draw_matches(GREY, GREY, far, ONE, values=[1.0])[60, 20])


def test_no_matches_leave_the_images():
    empty = np.zeros((0, 2))
    canvas = draw_matches(GREY, GREY, empty, empty, values=[])
    assert (canvas[:, :160] == canvas[0, 0]).all()
    assert (draw_matches(GREY, GREY, [], []) == canvas).all()


def test_two_thousand_matches_do_not_hide_the_images():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (600, 1000, 3), dtype=np.uint8)
    points0, points1 = rng.uniform(0, 600, (2, 2000, 2))
    canvas = draw_matches(image, image, points0, points1, values=rng.uniform(size=2000), max_lines=None)
    assert canvas.shape[1] <= MAX_WIDTH
    plain = draw_matches(image, image, [], [])
    correlation = np.corrcoef(canvas.mean(axis=2).ravel(), plain.mean(axis=2).ravel())[0, 1]
    assert correlation > 0.5


def test_a_single_wrong_match_stays_visible_among_thousands():
    rng = np.random.default_rng(0)
    image = np.full((500, 700, 3), 100, dtype=np.uint8)
    points = rng.uniform(0, 500, (2000, 2))
    points[0] = 350, 250
    canvas = draw_matches(image, image, points, points, correct=np.arange(2000) > 0, max_lines=None).astype(int)
    without = draw_matches(image, image, points[1:], points[1:], correct=np.ones(1999), max_lines=None).astype(int)
    assert canvas[250, 700, 0] - without[250, 700, 0] > 40


def test_unequal_sizes_share_a_height_and_points_land_in_place():
    small = np.full((60, 40, 3), 100, dtype=np.uint8)
    canvas = draw_matches(GREY, small, ONE, np.array([[20.0, 30.0]]), values=[1.0])
    assert canvas.shape == (120, 160 + GAP + 80, 3)
    x, y = 168 + round(20.5 * 2 - 0.5), round(30.5 * 2 - 0.5)
    assert greenish(canvas[y, x])
    tall = np.zeros((5000, 100), dtype=np.uint8)
    wide = np.zeros((100, 9000), dtype=np.uint8)
    assert draw_matches(tall, tall, [], []).shape[0] == MAX_HEIGHT
    assert draw_matches(wide, tall, [], []).shape[1] <= MAX_WIDTH


def test_text_is_white_with_a_black_outline_and_fits_the_width():
    bright = np.full((400, 300, 3), 200, dtype=np.uint8)
    canvas = draw_matches(bright, bright, [], [], caption=["a caption that is much too long " * 4, "short"])
    corner = canvas[:60, :290]
    assert corner.max() > 230  # nothing of the muted image is as bright
    assert corner.min() < 30
    assert (canvas[100:, :290] == canvas[300, 0]).all()
    assert (canvas[:, -5:] == canvas[-1, -1]).all()


def test_wrong_arguments_are_named():
    with pytest.raises(LinGlueError, match="points1 2, expected the same number"):
        draw_matches(GREY, GREY, ONE, np.repeat(ONE, 2, 0))
    with pytest.raises(LinGlueError, match="values has 2 entries, expected 1"):
        draw_matches(GREY, GREY, ONE, ONE, values=[0.1, 0.2])
    with pytest.raises(LinGlueError, match="both values and correct"):
        draw_matches(GREY, GREY, ONE, ONE, values=[1.0], correct=[True])
    with pytest.raises(LinGlueError, match=r"points0 has shape \(1, 3\)"):
        draw_matches(GREY, GREY, np.zeros((1, 3)), ONE)


def test_keypoints_are_dots_or_circles_with_ticks():
    middle = {"keypoints": np.array([[80.0, 60.0]]), "descriptors": np.ones((1, 4)), "image_size": (160, 120)}
    assert greenish(draw_keypoints(GREY, Features(**middle))[60, 80] * np.array([0.5, 1, 1]))
    scales = np.array([40.0])
    ring = draw_keypoints(GREY, Features(**middle, scales=scales))
    tick = draw_keypoints(GREY, Features(**middle, scales=scales, oris=np.array([np.pi / 2])))
    for canvas in (ring, tick):
        assert canvas[60, 100, 1] > 180  # radius 20
        assert canvas[60, 90, 1] < 120
    assert ring[70, 80, 1] < 120
    assert tick[70, 80, 1] > 180  # π/2 points down
    with pytest.raises(LinGlueError, match="image is 100x50 pixels, expected the size of its features, 160x120"):
        draw_keypoints(np.zeros((50, 100, 3), dtype=np.uint8), features(3))


def test_compare_stacks_wide_and_joins_upright_canvases():
    wide, narrower = np.full((50, 200, 3), 90, dtype=np.uint8), np.full((50, 100, 3), 120, dtype=np.uint8)
    both = compare(wide, narrower, "ours", "theirs")
    assert both.shape == (HEADER + 25 + HEADER + 50, 100, 3)
    assert both.max() > 200  # the labels
    upright = compare(wide.transpose(1, 0, 2), narrower.transpose(1, 0, 2), "ours", "theirs")
    assert upright.shape == (HEADER + 100, 25 + 50, 3)


@pytest.mark.parametrize("name", ["a.png", "b.JPG", "ü c.webp"])
def test_saved_pictures_read_back_as_rgb(tmp_path, name):
    canvas = np.zeros((40, 60, 3), dtype=np.uint8)
    canvas[...] = 250, 120, 10
    save_image(tmp_path / name, canvas)
    data = np.frombuffer((tmp_path / name).read_bytes(), dtype=np.uint8)
    read = cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert np.abs(read.astype(int) - canvas).max() < 12
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_saving_refuses_unknown_suffixes_and_folders_it_cannot_write(tmp_path):
    for name in ("a.gif", "a"):
        with pytest.raises(LinGlueError, match=rf"{name}: .*expected: \.png"):
            save_image(tmp_path / name, GREY)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "missing" / "a.png", tmp_path / "file" / "a.png", tmp_path / "folder.png"):
        with pytest.raises(LinGlueError, match=rf"{path}: cannot be written .*expected"):
            save_image(path, GREY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    target = tmp_path / "a.png"
    save_image(target, GREY)
    before = target.read_bytes()

    def full_disk(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(LinGlueError, match="No space left on device"):
        save_image(target, GREY[:50])
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_matches_draw_from_arrays_and_files(tmp_path):
    save_image(tmp_path / "in.png", GREY)
    matches(image0=GREY, image1=GREY).draw(tmp_path / "arrays.png")
    matches(image0=tmp_path / "in.png", image1=tmp_path / "in.png").draw(str(tmp_path / "files.png"))
    drawn = cv2.imread(str(tmp_path / "arrays.png"))
    assert drawn.shape == (120, 328, 3)
    assert (drawn == cv2.imread(str(tmp_path / "files.png"))).all()


def test_matches_of_bare_features_have_nothing_to_draw_on(tmp_path):
    with pytest.raises(LinGlueError, match="nothing to draw on"):
        matches(image0=GREY).draw(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_few_lines_are_spread_over_the_image_and_the_confident_come_first():
    rng = np.random.default_rng(0)
    image = np.full((500, 700, 3), 100, dtype=np.uint8)
    crowded = rng.uniform([20, 20], [120, 120], (900, 2))
    lonely = np.array([[650.0, 60.0], [60.0, 450.0], [650.0, 450.0]])
    points = np.concatenate([crowded, lonely])
    values = np.concatenate([rng.uniform(0.5, 1, 900), np.full(3, 0.9)])
    few = draw_matches(image, image, points, points, values=values, max_lines=40)
    plain = draw_matches(image, image, [], [])
    for x, y in lonely.astype(int):
        assert greenish(few[y, x] * np.array([0.5, 1, 1]))
    everything = draw_matches(image, image, points, points, values=values, max_lines=None)
    assert (few != plain).any(axis=2).mean() < 0.8 * (everything != plain).any(axis=2).mean()
    twice = np.repeat(ONE, 2, 0)
    assert greenish(draw_matches(GREY, GREY, twice, twice, values=[0.0, 1.0], max_lines=1)[60, 100])
    with pytest.raises(LinGlueError, match="lines is 0, expected at least 1"):
        draw_matches(GREY, GREY, ONE, ONE, max_lines=0)


def test_the_legend_says_what_colours_mean():
    image = np.full((500, 700, 3), 100, dtype=np.uint8)
    point = np.array([[350.0, 100.0]])
    for colours in ({"values": [1.0]}, {"correct": [True]}):
        legend = draw_matches(image, image, point, point, **colours)
        corner = legend[440:, :400].astype(int)
        assert (corner[..., 0] - corner[..., 1]).max() > 150 and (corner[..., 1] - corner[..., 0]).max() > 150
        assert corner.min(axis=2).max() > 230  # letters
    without = draw_matches(image, image, point, point)
    assert (without[440:, :400] == without[-1, 0]).all()


def test_images_keep_their_colours():
    image = np.zeros((120, 160, 3), dtype=np.uint8)
    image[...] = 200, 60, 60
    pixel = draw_matches(image, image, [], [])[60, 60].astype(int)
    assert pixel[0] - pixel[1] > 60
