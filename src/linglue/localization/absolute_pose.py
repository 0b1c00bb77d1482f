"""Where a camera stands: from matches with images of a sparse model to 2D–3D correspondences to a pose."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_pixel, quiet_pycolmap
from linglue.geometry.pose import Pose
from linglue.types import FloatArray, IndexArray

if TYPE_CHECKING:
    import pycolmap

PURPOSE = "localization"
REFERENCE_SIDE = 1600  # pixels of the longer side at which the threshold is meant
NO_POINT = -1


@dataclass(frozen=True)
class PoseConfig:
    """When a correspondence fits, and how many must."""

    max_error: float = 12.0  # pixels at a longer side of REFERENCE_SIDE, in proportion at others; hloc's value
    min_inliers: int = 12  # keypoints; fewer fit some pose by chance, or where a pattern repeats
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.max_error > 0:
            raise LinGlueError(f"max_error is {self.max_error}, expected a positive number of pixels")
        if self.min_inliers < 4:
            raise LinGlueError(f"min_inliers is {self.min_inliers}, expected at least 4")
        if self.seed < 0:
            raise LinGlueError(f"seed is {self.seed}, expected at least 0")


@dataclass(frozen=True, eq=False)
class ModelPoints:
    """The points of a sparse model, and which of them each keypoint of its registered images shows."""

    positions: NDArray[np.float64]  # (P, 3)
    shown: dict[str, IndexArray]  # by image name: (N,) row of `positions` per keypoint, or NO_POINT

    @classmethod
    def of(cls, model: pycolmap.Reconstruction) -> ModelPoints:
        """Those of a model of COLMAP."""
        ids = np.array(sorted(model.point3D_ids()), dtype=np.uint64)
        positions = np.array([model.point3D(number).xyz for number in ids.tolist()]).reshape(-1, 3)
        shown = {}
        for image in map(model.image, model.reg_image_ids()):
            rows = np.full(image.num_points2D(), NO_POINT, dtype=np.int64)
            seen = np.array([point.point3D_id for point in image.get_observation_points2D()], dtype=np.uint64)
            rows[image.get_observation_point2D_idxs()] = np.searchsorted(ids, seen)
            shown[image.name] = rows
        return cls(positions, shown)

    def correspondences(self, matches: Iterable[tuple[str, IndexArray]]) -> IndexArray:
        """(C, 2) keypoint of the query and row of `positions`, each pair once; a keypoint may have several points.

        `matches`: name of an image in the model with (K, 2) indices into the query's keypoints and into its own.
        """
        found = [np.zeros((0, 2), dtype=np.int64)]
        for name, indices in matches:
            points = self.shown[name][indices[:, 1]]
            keep = points != NO_POINT
            found.append(np.column_stack([indices[keep, 0], points[keep]]))
        return np.unique(np.concatenate(found), axis=0)


@dataclass(frozen=True, eq=False)
class PoseEstimate:
    """The pose of one image, or why there is none."""

    cam_from_world: Pose | None
    reason: str | None  # one line, where there is no pose
    camera: pycolmap.Camera  # as used: with the intrinsics that were found where they were refined
    correspondences: int
    inliers: int  # keypoints with a correspondence that fits the pose


def estimate_pose(
    points: ModelPoints,
    keypoints: FloatArray,
    matches: Iterable[tuple[str, IndexArray]],
    camera: pycolmap.Camera,
    refine_camera: bool = False,
    config: PoseConfig | None = None,
) -> PoseEstimate:
    """The pose of an image from its matches with images of a model.

    Args:
        points: of the model.
        keypoints: (N, 2) pixels of the image.
        matches: names of images of the model with (K, 2) indices into `keypoints` and into theirs.
        camera: COLMAP's, of the image.
        refine_camera: its intrinsics are a first guess: focal length and distortion are found together with the pose,
            and a focal length that is not even from EXIF (`has_prior_focal_length`) is found from nothing.
        config: thresholds and seed.
    """
    config = config or PoseConfig()
    pairs = points.correspondences(matches)
    used = copy(camera)  # COLMAP refines it in place
    options, refinement = _options(config, used, refine_camera)
    found = quiet_pycolmap(PURPOSE).estimate_and_refine_absolute_pose(
        colmap_from_pixel(keypoints[pairs[:, 0]].astype(np.float64)),
        points.positions[pairs[:, 1]],
        used,
        options,
        refinement,
    )
    inliers = 0 if found is None else len(np.unique(pairs[found["inlier_mask"], 0]))
    if found is None or inliers < config.min_inliers:
        reason = (
            f"{inliers} keypoints fit one pose, expected at least {config.min_inliers}; {len(pairs)} show map points"
        )
        return PoseEstimate(None, reason, camera, len(pairs), inliers)
    pose = Pose.from_matrix(found["cam_from_world"].matrix())
    return PoseEstimate(pose, None, used, len(pairs), inliers)


def _options(
    config: PoseConfig, camera: pycolmap.Camera, refine_camera: bool
) -> tuple[pycolmap.AbsolutePoseEstimationOptions, pycolmap.AbsolutePoseRefinementOptions]:
    pycolmap = quiet_pycolmap(PURPOSE)
    options = pycolmap.AbsolutePoseEstimationOptions()
    options.ransac.max_error = config.max_error * max(camera.width, camera.height) / REFERENCE_SIDE
    options.ransac.random_seed = config.seed
    options.estimate_focal_length = refine_camera and not camera.has_prior_focal_length
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    refinement.refine_focal_length = refinement.refine_extra_params = refine_camera
    return options, refinement
