"""MegaDepth in its layout on disk, written here: a rendered scene with exact depth and poses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera, View
from linglue.geometry.colmap import colmap_from_pixel
from linglue.geometry.pose import Pose
from linglue.io.images import Image
from linglue.training.images.warp import pyramid
from linglue.training.sources.interface import grid_points
from linglue.training.sources.megadepth import MegaDepthConfig, MegaDepthSource, split_scenes
from linglue.training.sources.parallax import DepthMapper
from linglue.training.sources.renderer import Geometry, colour, quad, see
from linglue.types import ImageSize
from training.agreement import best_shift, patch_correlations, shared

SIZE = ImageSize(320, 240)
DEPTHS = "phoenix/S6/zl548/MegaDepth_v1/{}/dense0/depths/{}.h5"


def view_from(x: float, angle: float) -> View:
    c, s = np.cos(angle), np.sin(angle)
    rotation = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])
    return View(Camera.centred(SIZE, 300.0), Pose.at(rotation, np.array([x, 0.1 * x, 0.0])))


def render(images: list[Image]) -> tuple[list[Geometry], list[Image]]:
    """Three views of a wall with a poster in front."""
    surfaces = [
        quad(pyramid(images[0]), np.array([-4.0, -4, 5]), np.array([8.0, 0, 1]), np.array([0, 8.0, 0])),
        quad(pyramid(images[1]), np.array([-0.6, -0.8, 3]), np.array([1.5, 0, 0]), np.array([0, 1.5, 0])),
    ]
    views = [see(surfaces, view_from(*place)) for place in ((0.0, 0.0), (0.7, 0.1), (-0.6, -0.12))]
    sky = np.zeros((SIZE.height, SIZE.width, 3), dtype=np.uint8)
    return views, [colour(surfaces, view, sky) for view in views]


def write_scene(root: Path, name: str, views: list[Geometry], images: list[Image]) -> dict[str, Any]:
    """Images and depths; returns what scene_info holds. A fourth image has neither, as many do."""
    image_paths, depth_paths, intrinsics, poses = [], [], [], []
    for number, (view, image) in enumerate(zip(views, images, strict=True)):
        image_paths.append(f"Undistorted_SfM/{name}/images/{number}.png")
        depth_paths.append(DEPTHS.format(name, number))
        for path in (image_paths[-1], depth_paths[-1]):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / image_paths[-1]), image[..., ::-1])
        depth = 1 / np.maximum(view.inverse_depth, 1e-6)
        depth[:20] = 0  # not reconstructed
        with h5py.File(root / depth_paths[-1], "w") as file:
            file["depth"] = depth.astype(np.float32)
        k = view.view.camera.matrix.copy()
        k[:2, 2] = colmap_from_pixel(k[:2, 2])
        pose = np.vstack([view.view.cam_from_world.matrix, [0, 0, 0, 1]])
        intrinsics.append(k)
        poses.append(pose)
    overlap = np.full((4, 4), -1.0)
    for i, j, value in ((0, 1, 0.8), (0, 2, 0.55), (1, 2, 0.3)):
        overlap[i, j] = overlap[j, i] = value

    def holes(values: list) -> np.ndarray:
        array = np.empty(len(values) + 1, dtype=object)
        for k, value in enumerate(values):
            array[k] = value
        return array

    return {
        "image_paths": holes(image_paths),
        "depth_paths": holes(depth_paths),
        "intrinsics": holes(intrinsics),
        "poses": holes(poses),
        "overlap_matrix": np.asfortranarray(overlap),
    }


@pytest.fixture(scope="module")
def rendered(images) -> tuple:
    return render(images)


@pytest.fixture(scope="module")
def root(tmp_path_factory, rendered) -> Path:
    root = tmp_path_factory.mktemp("megadepth")
    (root / "scene_info").mkdir()
    for name in ("0001", "0002"):
        np.savez(root / "scene_info" / f"{name}.npz", **write_scene(root, name, *rendered))
    return root


def test_pairs_map_as_the_renderer_says(root, rendered):
    views, _ = rendered
    data = MegaDepthSource(MegaDepthConfig(str(root), overlap=(0.7, 1.0)))
    index = data.epoch(0)[0]
    pair = data.load(index).pair()
    a, b = views[index.image0], views[index.image1]
    sure = np.zeros(a.face.shape, dtype=bool)
    points = grid_points(*SIZE, 60)
    mapped, visible = pair.one_from_zero(points)
    exact, exactly_visible = DepthMapper(a, b, sure, sure)(points)
    unknown = np.asarray(np.isnan(mapped).any(axis=1))
    assert unknown[points[:, 1] < 19].all()
    assert unknown[points[:, 1] > 20].mean() < 0.15  # edges, and what falls on the unknown rows
    known = ~unknown
    assert np.abs(mapped - exact)[known & exactly_visible].max() < 0.02
    assert (visible == exactly_visible)[known].mean() > 0.995
    hidden = known & ~visible & pair_inside(exact)
    assert hidden.sum() > 20  # behind the poster: certain


def pair_inside(points: np.ndarray) -> np.ndarray:
    x, y = ((points >= 0) & (points <= np.array(SIZE) - 1)).T
    return x & y


def test_shrunk_images_agree_with_their_pixels(root):
    data = MegaDepthSource(MegaDepthConfig(str(root), overlap=(0.7, 1.0), longer_side=250))
    pair = data.sample([], np.random.default_rng(0)).pair()
    assert max(pair.image0.shape) == 250
    assert np.median(patch_correlations(pair)) > 0.97
    assert np.abs(best_shift(pair)).max() < 0.1


def test_sampling_follows_overlap_and_treats_scenes_alike(root):
    both = MegaDepthSource(MegaDepthConfig(str(root)))  # overlap 0.5 to 1: two pairs per scene
    epoch = both.epoch(3)
    assert epoch == both.epoch(3) and len(epoch) == 4
    assert {(p.scene, *sorted(p[1:])) for p in epoch} == {(s, 0, k) for s in (0, 1) for k in (1, 2)}
    assert len(MegaDepthSource(MegaDepthConfig(str(root), pairs_per_scene=1)).epoch(0)) == 2
    assert len(MegaDepthSource(MegaDepthConfig(str(root), overlap=(0.1, 1.0))).epoch(0)) == 6
    assert len(MegaDepthSource(MegaDepthConfig(str(root), scenes=("0002",))).epoch(0)) == 2
    shows = {both.load(index).shows for index in epoch}
    assert shows == {frozenset({f"megadepth:Undistorted_SfM/{s}/images"}) for s in ("0001", "0002")}


def test_layouts_of_loftr_and_glue_factory(tmp_path, rendered):
    info = write_scene(tmp_path, "0003", *rendered)
    del info["overlap_matrix"]
    info["pair_infos"] = [((0, 1), 0.8, None), ((1, 2), 0.3, None), ((0, 3), 0.9, None)]
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "0003_0.1_0.7.npz").write_bytes(pickle.dumps(info))
    (tmp_path / "depth_undistorted").mkdir()
    (tmp_path / "phoenix/S6/zl548/MegaDepth_v1/0003/dense0/depths").rename(tmp_path / "depth_undistorted/0003")
    data = MegaDepthSource(MegaDepthConfig(str(tmp_path), info="index"))
    assert [sorted(p[1:]) for p in data.epoch(0)] == [[0, 1]]
    assert min(shared(data.sample([], np.random.default_rng(0)).pair())) > 0.3


class Harmful:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"nonsense", "not a MegaDepth scene_info file"),
        (pickle.dumps([1]), "expected a MegaDepth scene_info file"),
        (pickle.dumps({"image_paths": []}), "lacks depth_paths, intrinsics, poses, overlap_matrix or pair_infos"),
        (pickle.dumps({"image_paths": Harmful()}), "asks for builtins.print"),
    ],
)
def test_malformed_scene_info(tmp_path, capsys, content, says):
    (tmp_path / "scene_info").mkdir()
    (tmp_path / "scene_info" / "0001.npz").write_bytes(content)
    with pytest.raises(LinGlueError, match=says) as caught:
        MegaDepthSource(MegaDepthConfig(str(tmp_path)))
    assert "\n" not in str(caught.value) and "0001.npz" in str(caught.value)
    assert not capsys.readouterr().out


def test_what_is_missing_is_named(tmp_path, rendered):
    with pytest.raises(LinGlueError, match="scene_info: no such folder"):
        MegaDepthSource(MegaDepthConfig(str(tmp_path)))
    (tmp_path / "scene_info").mkdir()
    info = write_scene(tmp_path, "0001", *rendered)
    np.savez(tmp_path / "scene_info" / "0001.npz", **info)
    with pytest.raises(LinGlueError, match=r"0009\.npz: no such scene_info"):
        MegaDepthSource(MegaDepthConfig(str(tmp_path), scenes=("0009",)))
    with pytest.raises(LinGlueError, match="no pair with an overlap"):
        MegaDepthSource(MegaDepthConfig(str(tmp_path), overlap=(0.9, 1.0)))
    data = MegaDepthSource(MegaDepthConfig(str(tmp_path), overlap=(0.7, 1.0)))
    (tmp_path / info["depth_paths"][0]).write_bytes(b"no HDF5")
    with pytest.raises(LinGlueError, match="not an HDF5 file with an array called depth"):
        data.load(data.epoch(0)[0])
    (tmp_path / info["depth_paths"][0]).unlink()
    with pytest.raises(LinGlueError, match="no such depth file"):
        data.load(data.epoch(0)[0])
    np.savez(tmp_path / "scene_info" / "0001.npz", **{**info, "overlap_matrix": np.zeros((2, 2))})
    with pytest.raises(LinGlueError, match=r"overlap_matrix has shape \(2, 2\)"):
        MegaDepthSource(MegaDepthConfig(str(tmp_path)))


def test_scene_lists_divide_the_data_set(tmp_path):
    (tmp_path / "scene_info").mkdir()
    for name in ("0001", "0002_0.1_0.3", "0002_0.3_0.5", "0003", "0004"):
        (tmp_path / "scene_info" / f"{name}.npz").touch()
    lists = {}
    for name, text in (("train", "0001\n"), ("valid", "# held out\n0002\n\n"), ("test", "0003\n")):
        lists[name] = tmp_path / f"{name}.txt"
        lists[name].write_text(text)
    parts = ("0002_0.1_0.3", "0002_0.3_0.5")
    assert split_scenes(tmp_path, lists["train"], lists["valid"], lists["test"]) == (("0001",), parts)
    assert split_scenes(tmp_path, None, lists["valid"], lists["test"]) == (("0001", "0004"), parts)
    assert split_scenes(tmp_path, None, None, lists["test"]) == (("0001", *parts, "0004"), ())
    lists["test"].write_text("0002")
    with pytest.raises(LinGlueError, match=r"test\.txt: names scene 0002, which .*valid\.txt names too"):
        split_scenes(tmp_path, lists["train"], lists["valid"], lists["test"])
    lists["train"].write_text("9999")
    with pytest.raises(LinGlueError, match=r"train\.txt: names no scene"):
        split_scenes(tmp_path, lists["train"], None, None)
    with pytest.raises(LinGlueError, match=r"nowhere\.txt: cannot be read"):
        split_scenes(tmp_path, tmp_path / "nowhere.txt", None, None)
