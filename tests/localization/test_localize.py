"""A rendered room of which one image is left out and found again."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue import LinGlueError, Matcher
from linglue.localization.absolute_pose import ModelPoints, PoseConfig, estimate_pose
from linglue.localization.localize import localize_queries, map_settings
from linglue.localization.localizer import Localization, LocalizeConfig, Localizer
from linglue.localization.queries import find_queries
from linglue.sfm.workspace import Workspace
from rendered import FOCAL, render, write_images
from rendered_map import KEYPOINTS, errors, intrinsics, pinhole, write_map

pycolmap = pytest.importorskip("pycolmap")

VIEWS = render(5)
QUERY, OTHERS = VIEWS[2], (*VIEWS[:2], *VIEWS[3:])
CONFIG = LocalizeConfig(max_keypoints=KEYPOINTS)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher.from_pretrained("sift")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("map")
    write_map(folder, OTHERS)
    return folder


@pytest.fixture(scope="module")
def localizer(work, matcher) -> Localizer:
    return Localizer.from_work(work, matcher, CONFIG)


@pytest.fixture(scope="module")
def found(localizer) -> Localization:
    return localizer.localize(QUERY.image, pinhole(QUERY))


def test_an_image_in_memory_is_found(found):
    metres, degrees = errors(found.cam_from_world, QUERY)
    assert metres < 0.02 and degrees < 0.2
    assert found.reason is None
    assert 100 < found.inliers <= found.correspondences
    assert sorted(found.retrieved) == sorted(view.name for view in OTHERS)
    assert set(found.timing) == {"extract", "retrieve", "match", "pose"}
    assert found.camera.params.tolist() == pinhole(QUERY).params.tolist()


def test_the_same_again_and_from_features_bit_for_bit(localizer, matcher, found):
    again = localizer.localize(matcher.extract(QUERY.image, KEYPOINTS), pinhole(QUERY))
    assert np.array_equal(again.cam_from_world.matrix, found.cam_from_world.matrix)
    assert (again.inliers, again.correspondences) == (found.inliers, found.correspondences)


def test_unknown_intrinsics_are_found_too(localizer, matcher):
    features = matcher.extract(QUERY.image, KEYPOINTS)
    result = localizer.localize(features)
    assert result.camera.focal_length == pytest.approx(FOCAL, rel=0.02)
    metres, degrees = errors(result.cam_from_world, QUERY)
    assert metres < 0.1 and degrees < 0.5


def test_a_guess_is_refined_and_not_changed(localizer, matcher):
    guess = pinhole(QUERY)
    guess.params = [500.0, 500.0, *guess.params[2:]]
    guess.has_prior_focal_length = True
    result = localizer.localize(matcher.extract(QUERY.image, KEYPOINTS), guess, refine_camera=True)
    assert result.camera.focal_length_x == pytest.approx(FOCAL, rel=0.02)
    assert guess.focal_length_x == 500.0


def test_other_places_have_no_pose_but_a_reason(localizer, pair):
    black = localizer.localize(np.zeros((360, 480, 3), np.uint8))
    elsewhere = localizer.localize(pair.image0)
    for result in (black, elsewhere):
        assert result.cam_from_world is None
        assert "expected at least 12" in result.reason and "\n" not in result.reason
    assert black.retrieved == () and len(elsewhere.retrieved) == len(OTHERS)


def test_large_maps_are_searched_first(work, matcher):
    localizer = Localizer.from_work(work, matcher, replace(CONFIG, top=1))
    result = localizer.localize(QUERY.image, pinhole(QUERY))
    assert len(result.retrieved) == 1 and result.retrieved[0] in {VIEWS[1].name, VIEWS[3].name}
    assert errors(result.cam_from_world, QUERY)[0] < 0.1


def test_cameras_of_another_size_are_refused(localizer):
    camera = pycolmap.Camera(model="PINHOLE", width=100, height=80, params=[90.0, 90, 50, 40])
    with pytest.raises(LinGlueError, match="camera is of 100x80 pixels, expected the image's size 480x360"):
        localizer.localize(QUERY.image, camera)


def test_a_model_of_other_features_is_refused(tmp_path, matcher):
    write_map(tmp_path, OTHERS[:3])
    with Workspace(tmp_path).features() as store:
        features = store.get(OTHERS[0].name)
        store.put(OTHERS[0].name, "other", features.select(np.arange(len(features))[::-1]))
    with pytest.raises(LinGlueError, match=r"has other keypoints than in features\.db"):
        Localizer.from_work(tmp_path, matcher)


def test_folders_without_a_map_are_refused(tmp_path, matcher):
    with pytest.raises(LinGlueError, match=r"holds no features.db, expected a folder of `linglue reconstruct`"):
        Localizer.from_work(tmp_path, matcher)
    assert not list(tmp_path.iterdir())


def test_a_keypoint_keeps_all_its_different_points():
    points = ModelPoints(np.zeros((3, 3)), {"a": np.array([0, -1, 2]), "b": np.array([0, 1])})
    matches = [("a", np.array([[5, 0], [6, 1], [7, 2]])), ("b", np.array([[5, 0], [7, 1]]))]
    assert points.correspondences(matches).tolist() == [[5, 0], [7, 1], [7, 2]]
    assert points.correspondences([]).shape == (0, 2)


def test_too_few_correspondences_are_no_error():
    points = ModelPoints(np.eye(3), {"a": np.arange(3)})
    for count in range(4):
        matches = [("a", np.repeat(np.arange(count)[:, None], 2, axis=1))]
        estimate = estimate_pose(points, np.eye(3, 2, dtype=np.float32), matches, pinhole(QUERY))
        assert estimate.cam_from_world is None and "expected at least 12" in str(estimate.reason)


@pytest.mark.parametrize("wrong", [{"max_error": 0}, {"min_inliers": 3}, {"seed": -1}])
def test_impossible_settings(wrong):
    with pytest.raises(LinGlueError, match=f"{next(iter(wrong))} is "):
        PoseConfig(**wrong)


def test_queries_of_a_folder_and_of_a_list(tmp_path):
    write_images(tmp_path / "images", VIEWS[:2])
    (tmp_path / "images" / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "images" / ".hidden.jpg").write_bytes(b"no picture")
    guessed, problems = find_queries(tmp_path / "images", None, None)
    assert [query.name for query in guessed] == [view.name for view in VIEWS[:2]]
    assert all(query.refine_camera for query in guessed)
    assert len(problems) == 1 and problems[0].startswith("broken.jpg: left out (not an image")
    known, _ = find_queries(tmp_path / "images", None, f"{FOCAL},{FOCAL},240,180")
    assert not any(query.refine_camera for query in known)

    names = tmp_path / "queries.txt"
    names.write_text("".join(f"{name} {intrinsics(VIEWS[0])}\n" for name in (VIEWS[0].name, "none.jpg")))
    listed, problems = find_queries(names, tmp_path / "images", None)
    assert [query.name for query in listed] == [VIEWS[0].name] and not listed[0].refine_camera
    assert listed[0].camera.params.tolist() == pinhole(VIEWS[0]).params.tolist()
    assert problems == ["none.jpg: left out (no such image file)"]
    for source, images, values in ((names, None, None), (tmp_path / "no", None, None), (names, tmp_path, "1,1,1,1")):
        with pytest.raises(LinGlueError, match="expected"):
            find_queries(source, images, values)


class Counting(Localizer):
    """A localizer that counts, and can be killed."""

    def __init__(self, localizer, until=None):
        self.localizer, self.until, self.done = localizer, until, 0

    def localize(self, query, camera=None, refine_camera=False):
        if self.done == self.until:
            raise KeyboardInterrupt
        self.done += 1
        return self.localizer.localize(query, camera, refine_camera)


def test_a_killed_run_goes_on_where_it_was(tmp_path, work, localizer):
    images, record = tmp_path / "images", tmp_path / "poses.jsonl"
    write_images(images, VIEWS[1:4])
    queries, _ = find_queries(images, None, f"{FOCAL},{FOCAL},240,180")
    settings = map_settings(Workspace(work), CONFIG, {})
    with pytest.raises(KeyboardInterrupt):
        localize_queries(queries, lambda: Counting(localizer, until=2), settings, record)
    with record.open("a") as file:
        file.write('{"name": "half a li')  # as kill −9 leaves it
    counting = Counting(localizer)
    result = localize_queries(queries, lambda: counting, settings, record)
    assert (counting.done, result.made, result.kept) == (1, 1, 2)
    assert [located.name for located in result.located] == [query.name for query in queries]
    assert all(errors(located.pose, view)[0] < 0.05 for located, view in zip(result.located, VIEWS[1:4], strict=True))

    finished = localize_queries(queries, lambda: pytest.fail("nothing to do"), settings, record)
    assert (finished.located, finished.made) == (result.located, 0)

    cv2.imwrite(str(queries[0].path), 255 - VIEWS[1].image)  # another image under the same name
    counting = Counting(localizer)
    assert localize_queries(queries, lambda: counting, settings, record).kept == 2
    assert counting.done == 1 and len(record.read_text().splitlines()) == 3
    counting = Counting(localizer)
    assert localize_queries(queries[:1], lambda: counting, {**settings, "top": 5}, record).made == 1
    assert localize_queries(queries[1:], lambda: counting, settings, record).kept == 2  # of others, still there
