"""COLMAP's PatchMatch in `linglue dense`: without a GPU its depth maps are the truth here; fusion is COLMAP's own."""

from pathlib import Path

import numpy as np
import pytest

from linglue.dense.colmap import check_cuda
from linglue.dense.dense import DenseConfig, densify
from linglue.errors import LinGlueError
from linglue.io.ply import read_ply
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import Workspace
from linglue.training.sources.renderer import see
from rendered import _room, render, write_images
from rendered_map import write_map

pycolmap = pytest.importorskip("pycolmap")

VIEWS = render(5)


def write_map_of(path: Path, values: np.ndarray) -> None:
    """COLMAP's own layout of depths (H, W) and normals (H, W, 3)."""
    height, width, channels = np.atleast_3d(values).shape
    body = np.moveaxis(np.atleast_3d(values), -1, 0).astype("<f4").tobytes()
    path.write_bytes(f"{width}&{height}&{channels}&".encode() + body)


def truth_instead_of_patch_match(workspace: Path, options) -> None:
    """What PatchMatch would write into its workspace."""
    model = read_model(workspace / "sparse")
    for view in VIEWS:
        camera = model.camera(model.find_image_with_name(view.name).camera_id)
        inverse = see(_room(), view.truth).inverse_depth
        depth = np.where(inverse > 0, 1 / np.maximum(inverse, 1e-9), 0)[: camera.height, : camera.width]
        fx, fy, cx, cy = camera.params
        y, x = np.mgrid[: camera.height, : camera.width]
        points = np.stack([(x + 0.5 - cx) / fx * depth, (y + 0.5 - cy) / fy * depth, depth], -1)  # (H, W, 3)
        normals = np.cross(np.gradient(points, axis=1), np.gradient(points, axis=0))
        normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-9)
        normals *= np.where((normals * points).sum(-1, keepdims=True) > 0, -1, 1)
        for kind, values in (("depth", depth), ("normal", normals)):
            path = workspace / "stereo" / f"{kind}_maps" / f"{view.name}.geometric.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_map_of(path, values)


def test_its_points_are_read_and_the_settings_arrive(tmp_path, monkeypatch):
    write_images(tmp_path / "images", VIEWS)
    write_map(tmp_path / "work", VIEWS)
    work, sizes = Workspace(tmp_path / "work"), []
    with work.features() as features:
        for view in VIEWS:
            features.put(view.name, "rendered", features.get(view.name), tmp_path / "images" / view.name)

    def patch_match_stereo(workspace, options):
        sizes.append(options.max_image_size)
        truth_instead_of_patch_match(Path(workspace), options)

    monkeypatch.setattr(pycolmap, "has_cuda", True)
    monkeypatch.setattr(pycolmap, "patch_match_stereo", patch_match_stereo)
    cloud = densify(work, tmp_path / "points.ply", DenseConfig(longer_side=480, stereo="colmap"))
    assert sizes == [480]
    assert len(cloud) == len(read_ply(tmp_path / "points.ply")) > 5000
    assert not list(tmp_path.glob("*.vis"))
    errors = []
    for view in VIEWS:
        pixels, depth = view.truth.project(cloud.points)
        inside = view.truth.camera.framed(pixels)
        x, y = np.rint(np.where(inside[:, None], pixels, 0)).astype(int).T
        inverse = see(_room(), view.truth).inverse_depth
        errors.append(np.where(inside, np.abs(1 / np.maximum(inverse, 1e-9)[y, x] - depth), np.inf))
    assert (np.min(errors, axis=0) < 0.09).mean() > 0.9  # metres: 1 % of the room


@pytest.mark.skipif(pycolmap.has_cuda, reason="this pycolmap was built with CUDA")
def test_without_cuda_it_is_one_line():
    with pytest.raises(LinGlueError, match=r"--stereo is colmap, but pycolmap .* was built without CUDA"):
        check_cuda()
    with pytest.raises(LinGlueError, match="stereo is 'other', expected sweep or colmap"):
        DenseConfig(stereo="other")
