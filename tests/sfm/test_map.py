"""The cameras of the rendered room, and points in it that are seen without images: quick, with known truth."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from linglue import LinGlueError
from linglue.io.colmap.database import open_database, read_images, write_database
from linglue.sfm.map import MappingConfig, build_model, verified_matches, verify_geometry
from linglue.sfm.sparse_model import ModelStatistics, aligned_errors, registered_names
from linglue.types import Features
from rendered import FOCAL, SIZE, render

pycolmap = pytest.importorskip("pycolmap")

ONE_THREAD = MappingConfig(threads=1)
POINTS, WRONG = 300, 40  # points in space, and wrong matches of each pair
VIEWS = render(6)
NAMES = [view.name for view in VIEWS]
TRUTH = {view.name: view.cam_from_world for view in VIEWS}


def camera(focal=FOCAL, known=True):
    made = pycolmap.Camera.create_from_model_name(
        pycolmap.INVALID_CAMERA_ID, "SIMPLE_RADIAL", focal, SIZE.width, SIZE.height
    )
    made.has_prior_focal_length = known
    return made


def observe(views, seed=0):
    """Keypoint i of all views is point i, with a noise of 0.3 pixels."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-1.6, -1.2, -1.2], [1.6, 1.0, 1.6], (POINTS, 3))
    return {
        view.name: Features(
            keypoints=view.truth.project(points)[0] + rng.normal(0, 0.3, (POINTS, 2)),
            descriptors=np.zeros((POINTS, 0)),
            image_size=SIZE,
        )
        for view in views
    }


def all_pairs(names, seed=0):
    rng = np.random.default_rng(seed)
    for name0, name1 in combinations(sorted(names), 2):
        wrong = np.stack([rng.permutation(POINTS)[:WRONG], rng.permutation(POINTS)[:WRONG]], axis=1)
        true = np.setdiff1d(np.arange(POINTS), wrong)
        yield name0, name1, np.concatenate([np.stack([true, true], axis=1), wrong])


def write(path, features, pairs, cameras=None):
    write_database(path, cameras or dict.fromkeys(features, camera()), features.__getitem__, pairs)
    verify_geometry(path, ONE_THREAD)
    return path


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("mapping") / "ä b.db", observe(VIEWS), all_pairs(NAMES))


def test_verification_keeps_the_true_matches_of_every_pair(database):
    verified = verified_matches(database)
    assert list(verified) == list(combinations(sorted(NAMES), 2))
    for name0, name1, matches in all_pairs(NAMES):
        true = len(matches) - WRONG
        assert 0.97 * true < verified[name0, name1] < true + 0.2 * WRONG


def test_verification_is_the_same_every_time_and_does_nothing_twice(database, tmp_path):
    again = write(tmp_path / "again.db", observe(VIEWS), all_pairs(NAMES))
    before = verified_matches(again)
    assert before == verified_matches(database)
    verify_geometry(again, MappingConfig(threads=1, seed=7))
    assert verified_matches(again) == before


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_model_with_given_intrinsics_is_true(database, mapper):
    mapped = build_model(database, NAMES, MappingConfig(mapper, threads=1))
    numbers = ModelStatistics.of(mapped.model, len(NAMES))
    assert registered_names(mapped.model) == sorted(NAMES) and mapped.smaller == ()
    assert numbers.points > 0.85 * POINTS and numbers.track_length > 4.5 and numbers.reprojection_error < 0.5
    positions, angles = aligned_errors(mapped.model, TRUTH)
    # Metres, at 6 m from the scene. The cameras stand nearly in a row, so positions align the roll about it badly.
    assert max(positions.values()) < 0.005 and max(angles.values()) < 0.5
    assert all(np.array_equal(c.params, camera().params) for c in mapped.model.cameras.values())


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_unknown_focal_length_is_found_and_given_ones_stay(tmp_path, mapper):
    guess, kept = camera(1.2 * SIZE.width, known=False), camera()
    cameras = {name: kept if number < 3 else guess for number, name in enumerate(NAMES)}
    database = write(tmp_path / "a.db", observe(VIEWS), all_pairs(NAMES), cameras)
    model = build_model(database, NAMES[:3], MappingConfig(mapper, threads=1)).model
    found = {model.image(number).name: model.camera(model.image(number).camera_id) for number in model.reg_image_ids()}
    assert found[NAMES[0]].params.tolist() == kept.params.tolist()
    assert found[NAMES[5]].focal_length == pytest.approx(FOCAL, rel=0.02)


def test_the_same_twice(database):
    first, second = (build_model(database, NAMES, ONE_THREAD).model for _ in range(2))
    poses = [{i.name: i.cam_from_world().matrix() for i in model.images.values()} for model in (first, second)]
    for name in NAMES:
        np.testing.assert_array_equal(poses[0][name], poses[1][name])


def test_two_images_are_a_model(tmp_path):
    names = [NAMES[0], NAMES[-1]]
    features = observe([VIEWS[0], VIEWS[-1]])
    mapped = build_model(write(tmp_path / "two.db", features, all_pairs(names)), names, ONE_THREAD)
    assert registered_names(mapped.model) == sorted(names)
    assert mapped.model.num_points3D() > 0.7 * POINTS


def test_of_two_places_the_larger_model_is_kept(tmp_path):
    there = {f"elsewhere/{name}": found for name, found in observe(VIEWS[:3], seed=1).items()}
    pairs = [*all_pairs(NAMES), *all_pairs(list(there), seed=1)]
    database = write(tmp_path / "two.db", {**observe(VIEWS), **there}, pairs)
    mapped = build_model(database, [*NAMES, *there], ONE_THREAD)
    assert registered_names(mapped.model) == sorted(NAMES)
    assert mapped.smaller == (3,)


def test_images_that_match_nothing(tmp_path):
    rng = np.random.default_rng(0)
    noise = [(a, b, rng.permutation(POINTS)[:40].reshape(-1, 2)) for a, b in combinations(sorted(NAMES), 2)]
    database = write(tmp_path / "a.db", observe(VIEWS), noise)
    with pytest.raises(LinGlueError, match=r"a\.db: no model of 6 images: none of their pairs has 15 or more verified"):
        build_model(database, NAMES, ONE_THREAD)


def test_images_from_one_place_have_no_depth(tmp_path):
    features = {f"{number}.jpg": observe(VIEWS[:1])[NAMES[0]] for number in range(3)}
    database = write(tmp_path / "a.db", features, all_pairs(list(features)))
    with pytest.raises(LinGlueError, match="3 of their pairs match, but none from far enough apart"):
        build_model(database, [], ONE_THREAD)


def test_without_pairs_and_with_an_image_without_keypoints(tmp_path):
    empty = Features(keypoints=np.zeros((0, 2)), descriptors=np.zeros((0, 0)), image_size=SIZE)
    database = write(tmp_path / "a.db", {**observe(VIEWS[:1]), "black.jpg": empty}, [])
    assert verified_matches(database) == {}
    with pytest.raises(LinGlueError, match="no model of 2 images"):
        build_model(database, [], ONE_THREAD)


def test_an_image_that_matches_nothing_is_left_out(tmp_path):
    empty = Features(keypoints=np.zeros((0, 2)), descriptors=np.zeros((0, 0)), image_size=SIZE)
    database = write(tmp_path / "a.db", {**observe(VIEWS), "black.jpg": empty}, all_pairs(NAMES))
    with open_database(database) as opened:
        assert "black.jpg" in read_images(opened)
    assert registered_names(build_model(database, NAMES, ONE_THREAD).model) == sorted(NAMES)


def test_what_is_no_database(tmp_path):
    (tmp_path / "a.db").write_text("nothing")
    for work in (verified_matches, lambda path: verify_geometry(path, ONE_THREAD)):
        with pytest.raises(LinGlueError, match="not a COLMAP database"):
            work(tmp_path / "a.db")
    with pytest.raises(LinGlueError, match="no such COLMAP database"):
        verify_geometry(tmp_path / "b.db", ONE_THREAD)


def test_bad_settings():
    with pytest.raises(LinGlueError, match="mapper is 'fast', expected incremental, global"):
        MappingConfig("fast")
    with pytest.raises(LinGlueError, match="threads is 0"):
        MappingConfig(threads=0)


def test_colmap_says_nothing(database, capfd):
    verify_geometry(database, ONE_THREAD)
    build_model(database, NAMES, ONE_THREAD)
    assert capfd.readouterr() == ("", "")
