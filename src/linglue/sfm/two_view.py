"""The geometry of two views from their matches, and the matches that obey it, by PoseLib."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera
from linglue.geometry.epipolar import essential_matrix
from linglue.geometry.pixels import pixel_from_corner
from linglue.geometry.pose import Pose
from linglue.io.exif import read_exif
from linglue.types import ImageSize, Matches

Kind = Literal["fundamental", "homography", "essential"]

LEAST = {"fundamental": 7, "homography": 4, "essential": 5}  # matches that decide one; PoseLib does not check
MAX_ERROR = 2.0  # pixels
GUESSED_FOCAL = 1.2  # times the longer side, where nothing is known: COLMAP's own guess
_PURPOSE = "--geometry"


@dataclass(frozen=True, eq=False)
class TwoView:
    """The geometry of a pair of images."""

    kind: Kind
    matrix: NDArray[np.float64] | None  # (3, 3) from image 0 to image 1; None: there are too few matches for one
    matches: Matches  # those that obey it


@dataclass(frozen=True)
class GeometryConfig:
    """What is estimated, and how."""

    kind: Kind = "fundamental"
    max_error: float = MAX_ERROR  # pixels from where an inlier belongs
    intrinsics: str | None = None  # essential: "fx,fy,cx,cy" of both cameras, COLMAP's origin; else EXIF or a guess
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise LinGlueError(f"geometry is {self.kind!r}, expected {', '.join(get_args(Kind))}")
        if not 0 < self.max_error < np.inf:
            raise LinGlueError(f"max_error is {self.max_error}, expected a positive number of pixels")
        if self.intrinsics is not None and self.kind != "essential":
            raise LinGlueError(f"--intrinsics is {self.intrinsics}, expected only with --geometry essential")
        if self.intrinsics is not None:
            _numbers(self.intrinsics)
        need("poselib", _PURPOSE)


def estimate_geometry(matches: Matches, config: GeometryConfig) -> TwoView:
    """The geometry that most matches agree on.

    Args:
        matches: of two images; where they are files, their EXIF tells focal lengths.
        config: what is estimated.
    """
    if len(matches) < LEAST[config.kind]:
        return TwoView(config.kind, None, _select(matches, np.zeros(len(matches), dtype=np.bool_)))
    poselib = need("poselib", _PURPOSE)
    points = [p.astype(np.float64) for p in (matches.points0, matches.points1)]
    name = "max_reproj_error" if config.kind == "homography" else "max_epipolar_error"
    options = {name: config.max_error, "seed": config.seed}
    if config.kind == "homography":
        matrix, info = poselib.estimate_homography(*points, options, {})
    elif config.kind == "fundamental":
        matrix, info = poselib.estimate_fundamental(*points, options, {})
    else:
        cameras = [_camera(matches, side, config.intrinsics) for side in (0, 1)]
        pose, info = poselib.estimate_relative_pose(*points, *map(_for_poselib, cameras), options, {})
        matrix = essential_matrix(Pose(np.asarray(pose.R), np.asarray(pose.t)))
    inliers = np.asarray(info["inliers"], dtype=np.bool_)
    if inliers.sum() < LEAST[config.kind]:
        return TwoView(config.kind, None, _select(matches, np.zeros(len(matches), dtype=np.bool_)))
    return TwoView(config.kind, np.asarray(matrix, dtype=np.float64), _select(matches, inliers))


def _select(matches: Matches, keep: NDArray[np.bool_]) -> Matches:
    return replace(
        matches,
        points0=matches.points0[keep],
        points1=matches.points1[keep],
        indices=matches.indices[keep],
        scores=matches.scores[keep],
    )


def _camera(matches: Matches, side: int, intrinsics: str | None) -> Camera:
    size = (matches.features0, matches.features1)[side].image_size
    if intrinsics is not None:
        fx, fy, cx, cy = _numbers(intrinsics)
        x, y = pixel_from_corner(np.array([cx, cy]))
        return Camera(size, np.array([[fx, 0, x], [0, fy, y], [0, 0, 1]]))
    image = (matches.image0, matches.image1)[side]
    exif = read_exif(image) if isinstance(image, Path) else None
    focal = None if exif is None else exif.focal
    return Camera.centred(size, focal or GUESSED_FOCAL * max(size))


def _for_poselib(camera: Camera) -> dict[str, Any]:
    k, size = camera.matrix, ImageSize(*camera.size)
    parameters = [k[0, 0], k[1, 1], k[0, 2], k[1, 2]]
    return {"model": "PINHOLE", "width": size.width, "height": size.height, "params": parameters}


def _numbers(intrinsics: str) -> tuple[float, float, float, float]:
    try:
        fx, fy, cx, cy = (float(value) for value in intrinsics.split(","))
    except ValueError:
        raise LinGlueError(f"--intrinsics is {intrinsics!r}, expected fx,fy,cx,cy") from None
    if not (0 < fx < np.inf and 0 < fy < np.inf and np.isfinite([cx, cy]).all()):
        raise LinGlueError(f"--intrinsics is {intrinsics!r}, expected positive focal lengths and a principal point")
    return fx, fy, cx, cy
