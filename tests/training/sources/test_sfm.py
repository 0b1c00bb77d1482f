"""Reconstruction by the real pycolmap of a rendered scene with known cameras, and what its tracks say of keypoints."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial import cKDTree

from linglue.errors import LinGlueError
from linglue.evaluation.tasks import pose
from linglue.features.sift import Sift
from linglue.geometry.camera import Camera, View
from linglue.geometry.epipolar import epipolar_distances, fundamental_matrix
from linglue.geometry.pose import Pose, direction_error, rotation_error
from linglue.io.images import read_image
from linglue.training.images.warp import pyramid
from linglue.training.sources import sfm
from linglue.training.sources.ground_truth import ground_truth
from linglue.training.sources.renderer import colour, quad, relief, see
from linglue.training.sources.sfm import (
    SCENE,
    SfmConfig,
    SfmSource,
    TracksConfig,
    export_pose_scene,
    load_pair,
    reconstruct,
)
from linglue.training.sources.tracks import SfmScene, load_scene
from linglue.types import ImageSize

SIZE = ImageSize(400, 300)
CONFIG = SfmConfig(max_features=1200)


def truth(number: int) -> View:
    """Six cameras on an arc around (0, 0, 6)."""
    angle = 0.11 * (number - 2.5)
    c, s = np.cos(angle), np.sin(angle)
    centre = np.array([6 * s, 0.25 * (number % 2), 6 - 6 * c])
    return View(Camera.centred(SIZE, 420.0), Pose.at(np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]), centre))


@pytest.fixture(scope="session")
def folders(tmp_path_factory, images) -> tuple[Path, Path]:
    """(images, reconstruction)"""
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install pycolmap")
    base = tmp_path_factory.mktemp("sfm")
    rng = np.random.default_rng(0)
    height = cv2.resize(rng.normal(0, 0.5, (5, 5)).astype(np.float32), (17, 17), interpolation=cv2.INTER_CUBIC)
    surfaces = [
        relief(pyramid(images[5]), np.array([-5.0, -4, 8]), np.array([10.0, 0, 0]), np.array([0, 8.0, 0]), height),
        quad(pyramid(images[1]), np.array([-1.8, -0.9, 5]), np.array([1.6, 0, 0.3]), np.array([0, 1.6, 0])),
        quad(pyramid(images[0]), np.array([0.3, -0.9, 6]), np.array([1.8, 0, -0.3]), np.array([0, 1.8, 0])),
    ]
    images = base / "rendered"
    images.mkdir()
    for number in range(6):
        sky = np.zeros((SIZE.height, SIZE.width, 3), dtype=np.uint8)
        image = colour(surfaces, see(surfaces, truth(number)), sky)
        cv2.imwrite(str(images / f"{number}.png"), image[..., ::-1])
    reconstruct(images, base / "scene", CONFIG, threads=1)
    return images, base / "scene"


@pytest.fixture(scope="session")
def scene(folders) -> SfmScene:
    return load_scene(folders[1] / SCENE)


def check_pose(found: Pose, i: int, j: int) -> None:
    true = truth(j).from_view(truth(i))
    assert rotation_error(found.rotation, true.rotation) < 0.5
    assert direction_error(found.translation, true.translation) < 1.5


def test_cameras_are_those_that_took_the_images(scene):
    assert scene.name == "rendered" and scene.images == [f"{k}.png" for k in range(6)]
    for i, j in ((0, 5), (1, 3), (4, 2)):
        check_pose(scene.views[j].from_view(scene.views[i]), i, j)
    for camera in (view.camera for view in scene.views):
        np.testing.assert_allclose(camera.matrix[:2, 2], (np.array(camera.size) - 1) / 2, atol=0.51)
        assert camera.focal == pytest.approx(420, rel=0.02)


def test_tracks_lie_where_our_keypoints_are(folders, scene):
    """The same detector in another implementation: a wrong convention shows as half a pixel."""
    pair = load_pair(folders[1], scene, 2, 3).pair()
    keypoints = Sift().extract(pair.image0, 1000).keypoints
    xy = scene.xy[scene.seen_in(2)]
    distance, row = cKDTree(xy).query(keypoints)
    near = distance < 1
    assert near.sum() > 80
    assert np.abs(np.median(xy[row[near]] - keypoints[near], axis=0)).max() < 0.15


def test_pairs_give_correct_ground_truth(folders, scene):
    generator = SfmSource(TracksConfig((str(folders[1]),), min_tracks=40, overlap=(0, 1)))
    assert generator.sample([], np.random.default_rng(1)).shows == frozenset({"images:rendered"})
    pair = load_pair(folders[1], scene, 1, 3).pair()
    zero, one = (Sift().extract(image, 1000) for image in (pair.image0, pair.image1))
    matches, _ = ground_truth(zero.keypoints, one.keypoints, pair, oris0=zero.oris, oris1=one.oris)
    found = np.flatnonzero(matches >= 0)
    assert len(found) > 60
    a, b = (View(scene.views[k].camera, truth(k).cam_from_world) for k in (1, 3))
    f = fundamental_matrix(a, b)
    distances = epipolar_distances(f, zero.keypoints[found], one.keypoints[matches[found]])
    assert np.median(np.maximum(*distances)) < 0.5 and np.quantile(np.maximum(*distances), 0.95) < 2.5


def test_pose_scene_is_what_eval_pose_reads(folders, tmp_path):
    export_pose_scene(folders[1], tmp_path / "exported")
    pairs = pose.load_scene(tmp_path / "exported", max_gap=5)
    assert len(pairs) == 15
    for pair in pairs[:5]:
        check_pose(pair.one_from_zero, int(pair.pair.image0.stem), int(pair.pair.image1.stem))
        image = cv2.imread(str(pair.pair.image0))
        assert image is not None and image.shape[1::-1] == tuple(pair.view0.camera.size)


def test_finished_stages_are_not_repeated(folders, scene, monkeypatch, tmp_path):
    images, folder = folders

    def never(*_: object) -> None:
        raise AssertionError("made again")

    for stage in ("_match", "_map", "_undistort"):
        monkeypatch.setattr(sfm, stage, never)
    again = reconstruct(images, folder, CONFIG)
    np.testing.assert_array_equal(again.xy, scene.xy)
    with pytest.raises(LinGlueError, match="other seed, use a new folder"):
        reconstruct(images, folder, SfmConfig(max_features=1200, seed=1))


def test_command_and_its_errors(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sfm, "SfmConfig", lambda **_: CONFIG)
    arguments = [str(folders[0]), "-o", str(folders[1]), "--export-pose-scene", str(tmp_path / "e"), "--threads", "1"]
    assert sfm.main(arguments) == 0
    assert "6 of 6 images" in capsys.readouterr().out and (tmp_path / "e" / "gt" / "0.png.txt").is_file()
    assert sfm.main([str(tmp_path / "nowhere"), "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.strip().endswith("expected a folder of images of one scene")
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert sfm.main([str(folders[0]), "-o", str(tmp_path / "new")]) == 1
    assert "pip install linglue[sfm]" in capsys.readouterr().err


def test_scenes_that_are_none(tmp_path):
    with pytest.raises(LinGlueError, match=r"scene\.npz: no such file"):
        SfmSource(TracksConfig((str(tmp_path),)))
    (tmp_path / SCENE).write_bytes(b"nonsense")
    with pytest.raises(LinGlueError, match="not a scene made by"):
        SfmSource(TracksConfig((str(tmp_path),)))
    exact_scene(np.random.default_rng(0)).save(tmp_path / SCENE)
    with pytest.raises(LinGlueError, match="no pair of images with 500 common points"):
        SfmSource(TracksConfig((str(tmp_path),), min_tracks=500))


def exact_scene(rng: np.random.Generator, turn: float = 0.0) -> SfmScene:
    """Two cameras, the second turned; the first observes all points in its frame, the second 60."""
    views = []
    for number, angle in ((0, 0.0), (4, turn)):
        view, c, s = truth(number), np.cos(angle), np.sin(angle)
        rotation = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]]) @ view.cam_from_world.rotation
        views.append(View(view.camera, Pose.at(rotation, view.centre)))
    points = rng.uniform([-3, -2, 4], [3, 2, 8], (400, 3))
    pixels = [view.project(points)[0] for view in views]
    framed = [view.camera.framed(p) for view, p in zip(views, pixels, strict=True)]
    points = points[framed[0]]
    seen = [np.arange(len(points)), np.flatnonzero(framed[1][framed[0]])[:60]]
    return SfmScene(
        "exact",
        ["0", "1"],
        views,
        points,
        np.repeat([0, 1], [len(s) for s in seen]),
        np.concatenate(seen),
        np.concatenate([view.project(points[s])[0] for view, s in zip(views, seen, strict=True)]),
    )


def test_mapper_knows_what_can_be_known(rng):
    scene = exact_scene(rng)
    b = scene.views[1]
    mapper = scene.mapper(0, 1, radius=1.5)
    own, other = scene.seen_in(0), scene.seen_in(1)
    common = scene.track[other]
    mapped, visible = mapper(scene.xy[own][common] + [0.4, -0.3])
    assert visible.mean() > 0.9  # the others have a rival next to them, or leave the frame
    np.testing.assert_allclose(mapped[visible], scene.xy[other][visible], atol=1.0)
    target = b.project(scene.points)[0]
    rest = np.setdiff1d(np.arange(len(scene.points)), common)
    mapped, visible = mapper(scene.xy[own][rest])
    outside = ~b.camera.framed(target[rest], 6.0)
    assert outside.sum() > 5 and not np.isnan(mapped[outside]).any() and not visible[outside].any()
    assert np.isnan(mapped[~outside & b.camera.framed(target[rest])]).mean() > 0.9


def test_rays_that_never_meet_the_other_image(rng):
    """Nowhere near a track: unknown, unless every depth of the ray is out of the other's frame."""
    scene = exact_scene(rng, turn=0.7)
    a, b = scene.views
    points = rng.uniform(0, 1, (500, 2)) * (np.array(SIZE) - 1)
    points = points[cKDTree(scene.xy[scene.seen_in(0)]).query(points)[0] > 1.5]
    mapped, visible = scene.mapper(0, 1, radius=1.5)(points)
    assert not visible.any()
    depths = 0.5 * a.depth(scene.points).min() * np.geomspace(1, 1e4, 4000)
    for point, place in zip(points[:60], mapped, strict=False):
        ray, _ = b.project(a.lift(np.repeat(point[None], len(depths), axis=0), depths))
        assert np.isnan(place).any() == b.camera.framed(ray, 5.0).any()
    assert 0 < np.isnan(mapped[:60, 0]).sum() < 60


def test_rivals_that_disagree_say_nothing(rng):
    scene = exact_scene(rng)
    track = scene.track[scene.seen_in(1)][0]
    twin = np.concatenate([scene.points, scene.points[[track]]])
    first, second = (scene.xy[scene.seen_in(i)] for i in (0, 1))
    merged = SfmScene(
        scene.name,
        scene.images,
        scene.views,
        twin,
        np.repeat([0, 1], [len(first) + 1, len(second) + 1]),
        np.concatenate(
            [scene.track[scene.seen_in(0)], [len(twin) - 1], scene.track[scene.seen_in(1)], [len(twin) - 1]]
        ),
        np.concatenate([first, first[[track]] + 0.5, second, second[[0]] + 40]),
    )
    point = first[[track]] + 0.2
    assert scene.mapper(0, 1, 1.5)(point)[1].all()
    mapped, visible = merged.mapper(0, 1, 1.5)(point)
    assert np.isnan(mapped).all() and not visible.any()


def test_rotation_tags_are_dropped(tmp_path, images):
    path = tmp_path / "tagged.jpg"
    cv2.imwrite(str(path), images[1])
    plain = path.read_bytes()
    tag = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0\0\0\0\0"  # turned by 180°
    path.write_bytes(plain[:2] + b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag + plain[2:])
    before = read_image(path)
    sfm._drop_orientation(path)
    assert np.abs(read_image(path)[::-1, ::-1].astype(int) - before).mean() < 3
    path.write_bytes(plain)
    sfm._drop_orientation(path)
    assert path.read_bytes() == plain
