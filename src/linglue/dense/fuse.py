"""From depth maps to points: what several images agree on, each point once, with its colour and its normal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from linglue.core.progress import progress
from linglue.dense.sweep import DepthMap
from linglue.dense.views import StereoView
from linglue.errors import LinGlueError
from linglue.io.ply import Cloud

Array = NDArray[np.float64]

REMEMBERED = 24  # depth maps in memory


@dataclass(frozen=True)
class FuseConfig:
    """When a depth is believed."""

    agree: int = 2  # neighbours that must find the same surface
    pixels: float = 1.0  # how far the way to a neighbour's surface and back may end from its start
    depth: float = 0.01  # how far depths may differ, relative
    score: float = 0.3  # correlation a depth must have

    def __post_init__(self) -> None:
        if self.agree < 1:
            raise LinGlueError(f"agree is {self.agree}, expected at least 1")


def fuse(views: Mapping[str, StereoView], read: Callable[[str], DepthMap], config: FuseConfig | None = None) -> Cloud:
    """The points that images agree on. Memory grows with the points, not with the images.

    Args:
        views: of `stereo_views`.
        read: the depth map of an image.
        config: when a depth is believed.
    """
    config = config or FuseConfig()
    depth_of = lru_cache(maxsize=REMEMBERED)(lambda name: _believed(read(name), config.score))
    used = {name: np.zeros(view.view.camera.size[::-1], dtype=np.bool_) for name, view in views.items()}
    parts = []
    for name in progress(list(views), desc="fusion", unit="image"):
        parts.append(_points(views, name, depth_of, used, config))
    return Cloud(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _believed(found: DepthMap, score: float) -> NDArray[np.float32]:
    return np.where(found.score >= score, found.depth, 0).astype(np.float32)


def _points(
    views: Mapping[str, StereoView],
    name: str,
    depth_of: Callable[[str], NDArray[np.float32]],
    used: dict[str, NDArray[np.bool_]],
    config: FuseConfig,
) -> tuple[Array, NDArray[np.uint8], Array]:
    """Points (N, 3), colours (N, 3) and normals (N, 3) of one image that no image before had."""
    own, depth = views[name], depth_of(name)
    y, x = np.nonzero((depth > 0) & ~used[name])
    pixels = np.column_stack([x, y]).astype(np.float64)  # (N, 2)
    points = own.view.lift(pixels, depth[y, x].astype(np.float64))
    total, count = points.copy(), np.ones(len(points))
    seen: list[tuple[str, NDArray[np.int64], NDArray[np.bool_]]] = []
    for other in (other for other in own.neighbours if other in views):
        place, same, theirs = _agreement(own, views[other], pixels, points, depth_of(other), config)
        total[same] += theirs[same]
        count += same
        seen.append((other, place, same))
    good = count > min(config.agree, max(len(seen), 1))
    for other, place, same in seen:
        taken = place[good & same]
        used[other][taken[:, 1], taken[:, 0]] = True
    normals = _normals(own, depth)[y[good], x[good]]
    return total[good] / count[good, None], own.load()[y[good], x[good]], normals


def _agreement(
    own: StereoView,
    other: StereoView,
    pixels: Array,
    points: Array,
    depth: NDArray[np.float32],
    config: FuseConfig,
) -> tuple[NDArray[np.int64], NDArray[np.bool_], Array]:
    """For points of `own`: pixels (N, 2) in `other`, whether its depth there tells the same, and its points (N, 3)."""
    projected, expected = other.view.project(points)
    inside = (expected > 0) & other.view.camera.framed(projected)
    place = np.where(inside[:, None], np.rint(projected), 0).astype(np.int64)
    found = np.where(inside, depth[place[:, 1], place[:, 0]], 0).astype(np.float64)
    theirs = other.view.lift(place.astype(np.float64), np.where(found > 0, found, 1.0))
    back, _ = own.view.project(theirs)
    # The way back starts at the centre of a pixel, up to half of one away from where the way there ended.
    away = np.linalg.norm(back - pixels, axis=1)
    same = (found > 0) & (np.abs(found - expected) < config.depth * expected) & (away < config.pixels)
    return place, same, theirs


def _normals(own: StereoView, depth: NDArray[np.float32]) -> Array:
    """(H, W, 3) unit vectors towards the camera, across two pixels; where a neighbour is unknown, the line of sight."""
    height, width = depth.shape
    y, x = np.mgrid[:height, :width]
    pixels = np.column_stack([x.ravel(), y.ravel()]).astype(np.float64)
    points = own.view.lift(pixels, depth.ravel().astype(np.float64)).reshape(height, width, 3)
    right, down = np.zeros_like(points), np.zeros_like(points)
    right[:, 1:-1], down[1:-1] = points[:, 2:] - points[:, :-2], points[2:] - points[:-2]
    known = np.zeros(depth.shape, dtype=np.bool_)
    known[1:-1, 1:-1] = (depth[1:-1, 2:] > 0) & (depth[1:-1, :-2] > 0) & (depth[2:, 1:-1] > 0) & (depth[:-2, 1:-1] > 0)
    sight = own.view.centre - points
    normal = np.where(known[..., None], np.cross(down, right), sight)
    normal *= np.where((normal * sight).sum(-1, keepdims=True) < 0, -1, 1)
    return normal / np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
