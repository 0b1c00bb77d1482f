"""Dense points of a rendered room of known geometry."""

from functools import cache

import numpy as np
import pytest

from linglue.dense.dense import DenseConfig, densify
from linglue.dense.fuse import FuseConfig, fuse
from linglue.dense.sweep import DepthMap, plane_depths, sweep
from linglue.dense.views import StereoView, stereo_views
from linglue.errors import LinGlueError
from linglue.io.ply import Cloud, read_ply, write_ply
from linglue.sfm.workspace import Workspace
from linglue.training.sources.renderer import see
from rendered import _room, render, write_images
from rendered_map import write_map

pytest.importorskip("pycolmap")

VIEWS = 5
CONFIG = DenseConfig(longer_side=240, neighbours=3, planes=64)


@cache
def true_depth(view) -> np.ndarray:
    """(H, W), infinite in the sky."""
    inverse = see(_room(), view.truth).inverse_depth
    return np.where(inverse > 0, 1 / np.maximum(inverse, 1e-9), np.inf)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Workspace:
    """A map with the true poses, and its images where the features say."""
    folder = tmp_path_factory.mktemp("dense")
    views = render(VIEWS)
    write_images(folder / "images", views)
    write_map(folder / "work", views)
    made = Workspace(folder / "work")
    with made.features() as features:
        for view in views:
            features.put(view.name, "rendered", features.get(view.name), folder / "images" / view.name)
    return made


@pytest.fixture(scope="module")
def cloud(work) -> Cloud:
    return densify(work, work.folder / "points.ply", CONFIG)


def test_depth_is_that_of_the_room():
    views = render(VIEWS)
    own, others = views[2], [views[1], views[3]]
    truth = true_depth(own)
    near, far = np.percentile(truth[np.isfinite(truth)], [1, 99])
    depths = plane_depths(own.truth, [other.truth for other in others], 0.9 * near, 1.1 * far, 64)
    found = sweep(own.image, own.truth, [(other.image, other.truth) for other in others], depths)
    sure = (found.depth > 0) & (found.score > 0.7) & np.isfinite(truth)
    error = np.abs(found.depth - truth)[sure] / truth[sure]
    assert sure.mean() > 0.4 and np.median(error) < 0.01 and (error < 0.03).mean() > 0.85


def test_planes_are_a_pixel_apart_at_most_unless_there_are_too_many():
    zero, one = (view.truth for view in render(VIEWS)[:2])
    depths = plane_depths(zero, [one], 4.0, 9.0, 1000)
    middle = np.array([[240.0, 180.0]])
    steps = [one.project(zero.lift(middle, np.array([depth])))[0][0] for depth in depths]
    assert 0 < np.linalg.norm(np.diff(steps, axis=0), axis=1).max() < 1.5
    assert depths[0] == pytest.approx(4) and depths[-1] == pytest.approx(9)
    assert len(plane_depths(zero, [one], 4.0, 9.0, 20)) == 20


def test_points_lie_on_the_room(cloud):
    assert len(cloud) > 5000
    errors = []
    for view in render(VIEWS):  # in some image, a point has the depth of the surface there
        pixels, depth = view.truth.project(cloud.points)
        inside = view.truth.camera.framed(pixels)
        x, y = np.rint(np.where(inside[:, None], pixels, 0)).astype(int).T
        errors.append(np.where(inside, np.abs(true_depth(view)[y, x] - depth), np.inf))
    assert (np.min(errors, axis=0) < 0.09).mean() > 0.9  # metres: 1 % of the room


def test_normals_have_unit_length_and_face_a_camera(cloud):
    assert np.allclose(np.linalg.norm(cloud.normals, axis=1), 1, atol=1e-4)
    centres = np.array([view.truth.centre for view in render(VIEWS)])
    towards = (cloud.normals[:, None] * (centres - cloud.points[:, None])).sum(-1)
    assert (towards.max(axis=1) > 0).all()


def test_colours_are_those_of_the_images(cloud):
    view = render(VIEWS)[2]
    pixels, depth = view.truth.project(cloud.points)
    x, y = np.rint(np.where(view.truth.camera.framed(pixels)[:, None], pixels, 0)).astype(int).T
    seen = view.truth.camera.framed(pixels) & (np.abs(true_depth(view)[y, x] - depth) < 0.05)
    assert np.median(np.abs(view.image[y, x][seen].astype(int) - cloud.colours[seen])) < 20


def test_a_second_run_takes_the_depth_maps_that_are_there(work, cloud, monkeypatch):
    def never(*_):
        raise AssertionError("depth was computed again")

    monkeypatch.setattr("linglue.dense.dense.depth_of", never)
    again = densify(work, work.folder / "again.ply", CONFIG)
    assert np.array_equal(again.points, cloud.points)
    assert np.allclose(read_ply(work.folder / "again.ply").points, cloud.points, atol=1e-5)


def test_what_one_image_alone_believes_is_left_out(work):
    folder = next(path for path in (work.folder / "dense").iterdir() if path.is_dir())
    views = stereo_views(folder, 240, 3)

    def wrong(name: str) -> DepthMap:
        number = list(views).index(name)
        shape = views[name].view.camera.size[::-1]
        return DepthMap(np.full(shape, 3.0 + number, np.float32), np.ones(shape, np.float32))

    assert len(fuse(views, wrong, FuseConfig(agree=2))) < 0.01 * 5 * 240 * 180


def test_neighbours_are_near(work):
    folder = next(path for path in (work.folder / "dense").iterdir() if path.is_dir())
    views: dict[str, StereoView] = stereo_views(folder, 240, 2)
    names = list(views)
    assert max(views[names[0]].view.camera.size) == 240
    assert all(name not in view.neighbours and len(view.neighbours) == 2 for name, view in views.items())
    assert names[4] not in views[names[0]].neighbours


def test_what_is_wrong_is_one_line(tmp_path):
    with pytest.raises(LinGlueError, match="holds no model"):
        densify(Workspace(tmp_path), tmp_path / "points.ply")
    for settings, words in (({"window": 4}, "odd"), ({"planes": 1}, "at least 3"), ({"longer_side": 3}, "at least 64")):
        with pytest.raises(LinGlueError, match=words):
            DenseConfig(**settings)
    write_ply(tmp_path / "a.ply", Cloud(np.ones((3, 3)), np.full((3, 3), 7, np.uint8), np.ones((3, 3))))
    assert read_ply(tmp_path / "a.ply").colours.tolist() == [[7, 7, 7]] * 3
    (tmp_path / "a.ply").write_bytes((tmp_path / "a.ply").read_bytes()[:-1])
    with pytest.raises(LinGlueError, match=r"a\.ply: damaged"):
        read_ply(tmp_path / "a.ply")


def test_a_surface_that_nobody_must_confirm_is_refused():
    with pytest.raises(LinGlueError, match="agree is 0, expected at least 1"):
        FuseConfig(agree=0)
