"""What stereo needs of a model: undistorted images, their cameras, how near and far they see, and their neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.camera import View
from linglue.geometry.colmap import camera_from_colmap
from linglue.geometry.pose import Pose
from linglue.io.images import Image, read_image
from linglue.sfm.sparse_model import read_model
from linglue.types import ImageSize

if TYPE_CHECKING:
    import pycolmap

FEWEST = 10  # points of the model an image must see to have a depth
WIDER = 0.1  # the range of depths is that of its points and this share more
_USUAL = 1.0, 99.0  # percent of the points that the range is made of
_BEST_ANGLE, _SMALLER, _LARGER = (
    10.0,
    4.0,
    15.0,
)  # degrees: triangulation that is best, and how much less or more will do


@dataclass(frozen=True, eq=False)
class StereoView:
    """An image and where it was taken from."""

    name: str
    path: Path
    view: View  # of the image at the size of `load`
    near: float  # depths between which its surfaces lie
    far: float
    neighbours: tuple[str, ...]  # the best first

    def load(self) -> Image:
        """(H, W, 3) the image, at the size of its camera."""
        size = self.view.camera.size
        return np.asarray(cv2.resize(read_image(self.path), tuple(size), interpolation=cv2.INTER_AREA), dtype=np.uint8)


def stereo_views(folder: Path, longer_side: int, neighbours: int) -> dict[str, StereoView]:
    """The views of a folder of undistorted images, by name, in the order of names.

    Args:
        folder: of `linglue.sfm.export_model.export_undistorted`.
        longer_side: images are shrunk to this many pixels.
        neighbours: images each one is compared with, at most.

    Returns:
        images that see too few points, or share none with another, are left out.
    """
    model = read_model(folder / "sparse" / "0")
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: str(image.name))
    ids = {image.name: _points(image) for image in images}
    views = {image.name: _view(model, image, longer_side) for image in images if len(ids[image.name]) >= FEWEST}
    place = {number: model.point3D(number).xyz for number in set().union(*ids.values())}
    seen_by: dict[int, list[str]] = {number: [] for number in place}
    for name in views:
        for number in sorted(set(ids[name])):
            seen_by[number].append(name)
    made = {}
    for name, view in views.items():
        chosen = _neighbours(name, ids[name], seen_by, views, place, neighbours)
        if chosen:
            depths = view.depth(np.array([place[number] for number in ids[name]]))
            near, far = np.percentile(depths[depths > 0], _USUAL)
            path = folder / "images" / name
            made[name] = StereoView(name, path, view, near * (1 - WIDER), far * (1 + WIDER), chosen)
    if not made:
        raise LinGlueError(f"{folder}: no two images share {FEWEST} points, expected a model of at least two")
    return made


def _points(image: pycolmap.Image) -> list[int]:
    return [point.point3D_id for point in image.points2D if point.has_point3D()]


def _view(model: pycolmap.Reconstruction, image: pycolmap.Image, longer_side: int) -> View:
    camera = camera_from_colmap(model.camera(image.camera_id))
    scale = min(1.0, longer_side / max(camera.size))
    size = ImageSize(*(max(1, round(side * scale)) for side in camera.size))
    return View(camera.resized(size), Pose.from_matrix(image.cam_from_world().matrix()))


def _neighbours(
    name: str,
    own: Sequence[int],
    seen_by: Mapping[int, Sequence[str]],
    views: Mapping[str, View],
    place: Mapping[int, NDArray[np.float64]],
    count: int,
) -> tuple[str, ...]:
    """Images that share many points seen under a good angle; only those that share any are looked at."""
    shared: dict[str, list[int]] = {}
    for number in sorted(set(own)):
        for other in seen_by[number]:
            shared.setdefault(other, []).append(number)
    score = {}
    for other, numbers in shared.items():
        if other != name and len(numbers) >= FEWEST:
            points = np.array([place[number] for number in numbers])
            rays = [points - views[side].centre for side in (name, other)]
            units = [ray / np.linalg.norm(ray, axis=1, keepdims=True) for ray in rays]
            angles = np.rad2deg(np.arccos(np.clip((units[0] * units[1]).sum(axis=1), -1, 1)))
            width = np.where(angles < _BEST_ANGLE, _SMALLER, _LARGER)
            score[other] = float(np.exp(-(((angles - _BEST_ANGLE) / width) ** 2) / 2).sum())
    return tuple(sorted(score, key=lambda other: (-score[other], other))[:count])
