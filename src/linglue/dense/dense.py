"""From a sparse model to a dense cloud: undistorted images, a depth map for each, fused; what is done is kept."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import fingerprint
from linglue.core.progress import progress
from linglue.dense.colmap import check_cuda, patch_match
from linglue.dense.fuse import FuseConfig, fuse
from linglue.dense.sweep import DepthMap, plane_depths, sweep
from linglue.dense.views import StereoView, stereo_views
from linglue.errors import LinGlueError
from linglue.io.ply import Cloud, write_ply
from linglue.sfm.export_model import check_images, export_undistorted
from linglue.sfm.workspace import Workspace

Stereo = Literal["sweep", "colmap"]


@dataclass(frozen=True)
class DenseConfig:
    """Everything a user can choose.

    Example:
        >>> DenseConfig(longer_side=800).planes
        256
    """

    longer_side: int = 1024  # pixels of the images that are compared
    neighbours: int = 4  # each image is compared with
    planes: int = 256  # depths that are tried, at most
    window: int = 7  # side of the squares that are compared
    device: str = "cpu"
    stereo: Stereo = "sweep"  # ours, or COLMAP's PatchMatch, which needs CUDA
    fusion: FuseConfig = field(default_factory=FuseConfig)

    def __post_init__(self) -> None:
        for name, least in (("longer_side", 64), ("neighbours", 1), ("planes", 3), ("window", 3)):
            if getattr(self, name) < least:
                raise LinGlueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if self.stereo not in get_args(Stereo):
            raise LinGlueError(f"stereo is {self.stereo!r}, expected {' or '.join(get_args(Stereo))}")
        if self.window % 2 == 0:
            raise LinGlueError(f"window is {self.window}, expected an odd number")


def densify(work: Workspace, target: Path, config: DenseConfig | None = None) -> Cloud:
    """Write the dense points of a reconstruction.

    Undistorted images and depth maps stay in WORK/dense, where a run that is started again finds them.

    Args:
        work: a folder of `linglue reconstruct`.
        target: the .ply file.
        config: all settings.

    Returns:
        The points, as they were written.

    Example:
        >>> densify(Workspace(Path("work")), Path("points.ply"))  # doctest: +SKIP
    """
    config = config or DenseConfig()
    if config.stereo == "colmap":
        check_cuda()
    folder = _undistorted(work)
    if config.stereo == "colmap":
        return patch_match(folder, target, config.longer_side)
    views = stereo_views(folder, config.longer_side, config.neighbours)
    made_from = fingerprint(
        model=folder.name, **{k: v for k, v in asdict(config).items() if k not in ("fusion", "device", "stereo")}
    )
    maps = {name: folder / "depth" / f"{_short(name, made_from)}.npz" for name in views}
    for name in progress([name for name in views if not maps[name].is_file()], desc="depth", unit="image"):
        _write_depth(maps[name], depth_of(views, name, config))
    cloud = fuse(views, lambda name: _read_depth(maps[name]), config.fusion)
    write_ply(target, cloud)
    return cloud


def depth_of(views: dict[str, StereoView], name: str, config: DenseConfig) -> DepthMap:
    """The depth map of one image.

    Args:
        views: of `stereo_views`.
        name: of the image.
        config: how it is made.
    """
    own = views[name]
    others = [views[other] for other in own.neighbours if other in views]
    depths = plane_depths(own.view, [other.view for other in others], own.near, own.far, config.planes)
    images = [(other.load(), other.view) for other in others]
    return sweep(own.load(), own.view, images, depths, config.window, config.device)


def _undistorted(work: Workspace) -> Path:
    """The folder of this model's undistorted images; made if it is not all there."""
    model = work.model_id()
    if model is None:
        raise LinGlueError(f"{work.folder}: holds no model, expected a folder of `linglue reconstruct`")
    folder = work.dense / model
    if not work.is_made(folder, model):
        work.check_free([folder], expected="that it is moved away")
        with work.features() as features:
            paths = features.paths()
        check_images(work.model, paths)
        work.remove([folder])
        work.dense.mkdir(exist_ok=True)
        with work.making(folder, model):
            export_undistorted(work.model, paths, folder)
    (folder / "depth").mkdir(exist_ok=True)
    return folder


def _short(name: str, made_from: str) -> str:
    return hashlib.sha256(f"{made_from}\n{name}".encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _write_depth(path: Path, found: DepthMap) -> None:
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, depth=found.depth, score=found.score.astype(np.float16))


def _read_depth(path: Path) -> DepthMap:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return DepthMap(arrays["depth"].astype(np.float32), arrays["score"].astype(np.float32))
    except Exception as error:  # zip and numpy raise many unrelated types on damaged files
        raise LinGlueError(f"{path}: damaged, expected a depth map; remove it and run again") from error
