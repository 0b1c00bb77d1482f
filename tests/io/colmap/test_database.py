"""COLMAP databases that we write: COLMAP reads them, reconstructs from them, and they appear whole or not at all."""

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from colmap_scene import COUNT, HEIGHT, NAMES, WIDTH, all_pairs, camera, scene, write_scene
from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_pixel
from linglue.io.colmap.database import open_database, read_features, read_images, read_matches, write_database
from linglue.types import Features

pycolmap = pytest.importorskip("pycolmap")


def test_what_we_write_comes_back(tmp_path):
    features, path = scene(), tmp_path / "data base.db"
    matches = [(NAMES[2], NAMES[0], np.array([[5, 7], [8, 1]])), (NAMES[0], NAMES[1], np.zeros((0, 2), np.int64))]
    shared = camera()
    write_database(path, dict.fromkeys(NAMES, shared), features.__getitem__, matches, with_descriptors=True)
    assert [p.name for p in tmp_path.iterdir()] == ["data base.db"]
    with open_database(path) as database:
        assert database.num_cameras() == 1 and database.num_rigs() == 1 and database.num_frames() == 4
        assert database.read_all_cameras()[0].params.tolist() == shared.params.tolist()
        assert database.read_all_cameras()[0].has_prior_focal_length
        images = read_images(database)
        assert list(images) == sorted(NAMES)
        stored = database.read_keypoints(images[NAMES[0]].image_id)[:, :2]
        assert np.allclose(stored, colmap_from_pixel(features[NAMES[0]].keypoints))
        for name in NAMES:
            read = read_features(database, images[name])
            assert read.kind == "sift" and read.image_size == (WIDTH, HEIGHT)
            assert np.allclose(read.keypoints, features[name].keypoints, atol=1e-4)
            assert np.allclose(read.scales, features[name].scales) and np.allclose(read.oris, features[name].oris)
            assert (read.descriptors * features[name].descriptors).sum(1).min() > 0.99
        left, right = images[NAMES[0]], images[NAMES[2]]
        assert read_matches(database, left, right).tolist() == [[7, 5], [1, 8]]
        assert read_matches(database, right, left).tolist() == [[5, 7], [8, 1]]
        assert read_matches(database, left, images[NAMES[1]]).shape == (0, 2)
        assert database.exists_matches(left.image_id, images[NAMES[1]].image_id)


def test_colmap_reconstructs_from_it(tmp_path):
    features, path = scene(), tmp_path / "database.db"
    cameras = {name: camera() for name in NAMES}
    write_database(path, cameras, features.__getitem__, all_pairs())
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = 0
    pycolmap.geometric_verification(path, two_view_geometry_options=options)
    mapping = pycolmap.IncrementalPipelineOptions()
    mapping.num_threads, mapping.random_seed, mapping.extract_colors = 1, 0, False
    models = pycolmap.incremental_mapping(path, tmp_path, tmp_path / "model", mapping)
    assert len(models) == 1
    assert sorted(image.name for image in models[0].images.values()) == sorted(NAMES)
    assert models[0].num_points3D() == COUNT
    assert models[0].compute_mean_reprojection_error() < 0.01


def test_cameras_are_shared_by_identity_or_number(tmp_path):
    one, features = camera(), scene()
    cameras = dict(zip(NAMES, [one, one, camera(camera_id=7), camera(camera_id=7)], strict=True))
    write_database(tmp_path / "database.db", cameras, features.__getitem__, [])
    with open_database(tmp_path / "database.db") as database:
        ids = [image.camera_id for image in (read_images(database)[name] for name in NAMES)]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_no_images_keypoints_or_shapes(tmp_path):
    path = tmp_path / "database.db"
    write_database(path, {}, scene().__getitem__, [])
    with open_database(path) as database:
        assert read_images(database) == {}
    empty = Features(keypoints=np.zeros((0, 2)), descriptors=np.zeros((0, 256)), image_size=(WIDTH, HEIGHT))
    plain = Features(keypoints=np.ones((1, 2)), descriptors=np.zeros((1, 256)), image_size=(WIDTH, HEIGHT))
    write_database(path, {"a": camera(), "b": camera()}, {"a": empty, "b": plain}.__getitem__, [])
    with open_database(path) as database:
        images = read_images(database)
        assert len(read_features(database, images["a"])) == 0
        read = read_features(database, images["b"])
        assert read.keypoints.tolist() == [[1, 1]] and read.scales is None and read.dim == 0 and read.kind == "unknown"


@pytest.mark.parametrize(
    ("matches", "complaint"),
    [
        ([("c.jpg", "d.jpg", np.zeros((1, 2), np.int64))], "image 'd.jpg', which is not among the 4"),
        ([("c.jpg", NAMES[0], np.array([[0, COUNT]]))], f"outside the keypoints of .*expected 0 to {COUNT - 1}"),
        ([("c.jpg", NAMES[0], np.array([[-1, 0]]))], "outside the keypoints of 'c.jpg'"),
        (2 * all_pairs()[:1], "is given twice"),
    ],
)
def test_wrong_matches_leave_the_old_file(tmp_path, matches, complaint):
    features, path = scene(), tmp_path / "database.db"
    write_database(path, {"old": camera()}, lambda _: features["c.jpg"], [])
    before = path.read_bytes()
    with pytest.raises(LinGlueError, match=rf"database\.db: .*{complaint}"):
        write_database(path, {name: camera() for name in NAMES}, features.__getitem__, matches)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["database.db"]


def test_the_journal_of_a_killed_program_does_not_reach_the_new_file(tmp_path):
    path = tmp_path / "database.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").write_bytes(b"of the old database")
    write_database(path, {"a": camera()}, lambda _: scene()["c.jpg"], [])
    assert [p.name for p in tmp_path.iterdir()] == ["database.db"]
    with open_database(path) as database:
        assert list(read_images(database)) == ["a"]


def test_only_sift_descriptors_can_be_written(tmp_path):
    other = Features(
        keypoints=np.ones((1, 2)), descriptors=np.zeros((1, 256)), image_size=(WIDTH, HEIGHT), kind="superpoint"
    )
    with pytest.raises(LinGlueError, match=r"'a' are 'superpoint' with 256 entries, COLMAP's descriptors are 'sift'"):
        write_database(tmp_path / "d.db", {"a": camera()}, lambda _: other, [], with_descriptors=True)
    with pytest.raises(LinGlueError, match="cannot be written"):
        write_database(tmp_path / "nowhere" / "d.db", {"a": camera()}, lambda _: other, [])


def test_other_files_are_refused_and_left_alone(tmp_path):
    missing, text, other = tmp_path / "missing.db", tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("not a database\n" * 100)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE images (name TEXT)")
    connection.close()
    before = other.read_bytes()
    for path, complaint in ((missing, "no such"), (text, "not a COLMAP database"), (other, "no table cameras, desc")):
        with pytest.raises(LinGlueError, match=complaint) as caught, open_database(path):
            pass
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not missing.exists() and other.read_bytes() == before


def test_descriptors_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "database.db"
    write_database(path, {"a b.jpg": camera()}, lambda _: scene()["c.jpg"], [])
    kind = pycolmap.FeatureExtractorType.ALIKED_N32
    with open_database(path) as database:
        image = read_images(database)["a b.jpg"]
        data = np.zeros((COUNT, 512), np.uint8)
        database.write_descriptors(image.image_id, pycolmap.FeatureDescriptors(kind, data))
        with pytest.raises(LinGlueError, match=r"'a b\.jpg': descriptors are ALIKED_N32 with 512 bytes, expected"):
            read_features(database, image)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM cameras", "image 'left side/ä 1.jpg' has camera 1, which is not in the database"),
        ("UPDATE cameras SET params = x'00'", "camera_id 1 in table cameras has data of a wrong size"),
        ("UPDATE cameras SET width = 0", "camera_id 1 in table cameras"),
        ("UPDATE keypoints SET rows = 1000000", "image_id 1 in table keypoints has data of a wrong size"),
        ("UPDATE keypoints SET data = NULL WHERE image_id = 2", "image_id 2 in table keypoints"),
        ("UPDATE descriptors SET data = x'0011'", "image_id 1 in table descriptors"),
        ("UPDATE matches SET rows = -1", "in table matches"),
        ("UPDATE matches SET cols = 7", "in table matches"),
        ("ALTER TABLE matches RENAME COLUMN rows TO lines", "not a COLMAP database"),
    ],
)
def test_a_damaged_database_is_one_line_and_stays_as_it_is(tmp_path, damage, told):
    path = tmp_path / "database.db"
    write_scene(path, all_pairs()[:1])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(damage)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LinGlueError, match=re.escape(told)) as caught, open_database(path):
        pass
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before
