"""Reconstructed scenes as arrays: cameras, points and where each was observed; and what they say about any keypoint.

Free of pycolmap, which is needed once, to make them (`linglue.training.sources.sfm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.geometry.camera import BEHIND, Array, Camera, View
from linglue.geometry.pose import Pose
from linglue.training.sources.interface import Flags, Points
from linglue.types import ImageSize, IndexArray

SLACK = 5.0  # pixels a point must project beyond the frame to be certainly outside: cameras are not perfect
CLOSEST = 0.5  # nothing in an image is closer than this share of its closest reconstructed point
RIVALS = 4  # observations beside one keypoint that must agree on where it goes


@dataclass(frozen=True, eq=False)
class SfmScene:
    """A reconstruction of undistorted images, all pixels with centres at integers."""

    name: str
    images: list[str]  # file names below the folder of the undistorted images
    views: list[View]
    points: Array  # (T, 3) in the world
    image: IndexArray  # (M,) of each observation: index into images, ascending
    track: IndexArray  # (M,) index into points
    xy: Array  # (M, 2) pixels

    def seen_in(self, image: int) -> slice:
        """The observations of one image."""
        first, last = np.searchsorted(self.image, [image, image + 1])
        return slice(int(first), int(last))

    def shared_tracks(self) -> IndexArray:
        """(I, I) number of points that two images both observe; on the diagonal those of one image."""
        seen = np.zeros((len(self.images), len(self.points)), dtype=np.float32)
        seen[self.image, self.track] = 1
        return np.rint(seen @ seen.T).astype(np.int64)

    def mapper(self, a: int, b: int, radius: float) -> TrackMapper:
        """From image a into image b."""
        in_a, in_b = self.seen_in(a), self.seen_in(b)
        where_b = np.full(len(self.points), -1, dtype=np.int64)
        where_b[self.track[in_b]] = np.arange(in_b.start, in_b.stop)
        rows = where_b[self.track[in_a]]
        target = np.where(rows[:, None] >= 0, self.xy[rows], np.nan)
        return TrackMapper(self.views[a], self.views[b], self.xy[in_a], self.points[self.track[in_a]], target, radius)

    def save(self, path: Path) -> None:
        """Write it as one .npz file."""
        with atomic_path(path) as partial:
            np.savez_compressed(
                partial,
                name=np.array(self.name),
                images=np.array(self.images),
                size=np.array([view.camera.size for view in self.views]),
                k=np.stack([view.camera.matrix for view in self.views]),
                rotation=np.stack([view.cam_from_world.rotation for view in self.views]),
                translation=np.stack([view.cam_from_world.translation for view in self.views]),
                points=self.points,
                image=self.image,
                track=self.track,
                xy=self.xy,
            )


def load_scene(path: Path) -> SfmScene:
    """Read what `SfmScene.save` wrote."""
    if not path.is_file():
        raise LinGlueError(f"{path}: no such file, expected a scene made by python -m linglue.training.sources.sfm")
    try:
        with np.load(path) as file:
            rows = zip(file["size"].tolist(), file["k"], file["rotation"], file["translation"], strict=True)
            views = [View(Camera(ImageSize(*size), k), Pose(*motion)) for size, k, *motion in rows]
            arrays = [file[name] for name in ("points", "image", "track", "xy")]
            return SfmScene(str(file["name"]), file["images"].tolist(), views, *arrays)
    except Exception as error:  # damaged archives raise nearly anything
        raise LinGlueError(f"{path}: not a scene made by python -m linglue.training.sources.sfm") from error


@dataclass(frozen=True, eq=False)
class TrackMapper:
    """What a reconstruction knows about points of image a in image b.

    A point within `radius` of an observation goes where its track was observed in b, moved by the little that separates
    it from that observation as on a surface parallel to the image. It is certainly not in b if its track lies outside
    b's frame, or if no depth of its viewing ray lies inside. Of every other point nothing is known: NaN.
    """

    a: View
    b: View
    xy: Array  # (M, 2) observations in a
    world: Array  # (M, 3) their points
    target: Array  # (M, 2) where b observes them; NaN where it does not
    radius: float  # pixels

    def __call__(self, points: Points) -> tuple[Points, Flags]:
        start: Array = np.asarray(points, dtype=np.float64)
        mapped = np.full(start.shape, np.nan)
        outside = ~self._ray_meets_b(start)
        mapped[outside] = self.b.project(self.a.lift(start[outside], np.full(outside.sum(), self._usual_depth())))[0]
        mapped[outside & self.b.camera.framed(mapped)] = BEHIND
        common = np.isfinite(self.target[:, 0])
        gone = ~common & ~self.b.camera.framed(self.b.project(self.world)[0], SLACK)
        near, row = _nearest(self.xy[gone], start, self.radius)
        mapped[near] = self.b.project(self.world[gone][row])[0]
        visible = self._follow(start, common, mapped)
        return mapped, visible

    def _follow(self, start: Array, common: Flags, mapped: Array) -> Flags:
        """Write where points beside common observations go into `mapped`; the rest stays as it is."""
        visible = np.zeros(len(start), dtype=np.bool_)
        xy, world, target = self.xy[common], self.world[common], self.target[common]
        if not len(xy) or not len(start):
            return visible
        distance, row = cKDTree(xy).query(start, k=RIVALS, distance_upper_bound=self.radius)
        near = np.isfinite(distance)  # (N, RIVALS), nearest first
        index = np.flatnonzero(near[:, 0])
        candidates = np.full((len(index), RIVALS, 2), np.nan)
        for k in range(RIVALS):
            i = np.flatnonzero(near[index, k])
            r, depth = row[index[i], k], self.a.depth(world[row[index[i], k]])
            step = [self.b.project(self.a.lift(p, depth))[0] for p in (start[index[i]], xy[r])]
            candidates[i, k] = target[r] + step[0] - step[1]
        agree = np.nanmax(np.abs(candidates - candidates[:, :1]), axis=(1, 2)) <= 2 * self.radius
        mapped[index] = np.where(agree[:, None], candidates[:, 0], np.nan)
        visible[index] = agree & self.b.camera.framed(candidates[:, 0])
        return visible

    def _usual_depth(self) -> float:
        return float(np.median(self.a.depth(self.world))) if len(self.world) else 1.0

    def _ray_meets_b(self, pixels: Array) -> Flags:
        """(N,) whether some depth along the viewing ray of a pixel of a lies in b's frame.

        In b's camera the ray is p + z·q. To lie in the frame is five linear conditions n·(p + z·q) ≥ 0, each of which
        bounds z from below or above; the ray meets b if the bounds leave anything.
        """
        b_from_a = self.b.from_view(self.a)
        p = b_from_a.translation
        q = self.a.camera.rays(pixels) @ b_from_a.rotation.T
        width, height = self.b.camera.size
        limits = np.array(
            [[1, 0, SLACK], [-1, 0, width - 1 + SLACK], [0, 1, SLACK], [0, -1, height - 1 + SLACK]], dtype=np.float64
        )
        normals = np.concatenate([limits @ self.b.camera.matrix, [[0.0, 0.0, 1.0]]])
        constant, slope = normals @ p, q @ normals.T  # (5,), (N, 5)
        closest = CLOSEST * float(self.a.depth(self.world).min()) if len(self.world) else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = -constant / slope
        low = np.where(slope > 0, bound, -np.inf).max(axis=1)
        high = np.where(slope < 0, bound, np.inf).min(axis=1)
        never = ((slope == 0) & (constant < 0)).any(axis=1)
        return np.asarray((np.maximum(low, max(closest, 0.0)) <= high) & ~never)


def _nearest(tree: Array, points: Array, radius: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Points that have something of `tree` within `radius`: their indices and what is nearest."""
    if not len(tree) or not len(points):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    distance, row = cKDTree(tree).query(points, distance_upper_bound=radius)
    near = np.flatnonzero(np.isfinite(distance))
    return near, row[near]
