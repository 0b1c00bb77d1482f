"""A sparse model as arrays, for everything that draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pycolmap

Vectors = NDArray[np.float64]

CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])  # of an image, clockwise from the top left
_USUAL = 10.0, 90.0  # percent: between these lie the points whose extent is the scene's
_ALIKE = 0.3  # length of the mean of viewing directions above which cameras look the same way
_ABOVE = 0.5  # height of the lookout, relative to its distance


@dataclass(frozen=True, eq=False)
class Scene:
    """Points and cameras of a model, in its units; what draws them needs no pycolmap."""

    points: Vectors  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3)
    tracks: NDArray[np.int64]  # (N,) images that see each point
    errors: Vectors  # (N,) reprojection error in pixels
    names: tuple[str, ...]  # of the images with a pose, sorted
    centres: Vectors  # (C, 3)
    rotations: Vectors  # (C, 3, 3) camera from world: rows are right, down and forward
    reach: Vectors  # (C, 2) half of width and height at depth 1

    @classmethod
    def of(cls, model: pycolmap.Reconstruction, most: int | None = None) -> Scene:
        """The scene of a model.

        Args:
            model: any, also one without points or cameras.
            most: points at most; more are thinned at random, always in the same way.
        """
        images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
        cameras = [model.camera(image.camera_id) for image in images]
        ids = np.array(sorted(model.point3D_ids()), dtype=np.uint64)
        if most is not None and len(ids) > most:
            ids = np.sort(np.random.default_rng(0).permutation(ids)[:most])
        points = [model.point3D(number) for number in ids.tolist()]
        reach = [(c.width / 2 / c.mean_focal_length(), c.height / 2 / c.mean_focal_length()) for c in cameras]
        return cls(
            points=np.array([point.xyz for point in points]).reshape(-1, 3),
            colours=np.array([point.color for point in points], dtype=np.uint8).reshape(-1, 3),
            tracks=np.array([point.track.length() for point in points], dtype=np.int64),
            errors=np.array([point.error for point in points], dtype=np.float64),
            names=tuple(image.name for image in images),
            centres=np.array([image.projection_center() for image in images]).reshape(-1, 3),
            rotations=np.array([image.cam_from_world().rotation.matrix() for image in images]).reshape(-1, 3, 3),
            reach=np.array(reach, dtype=np.float64).reshape(-1, 2),
        )

    @classmethod
    def empty(cls) -> Scene:
        """Of no model yet."""
        nothing = np.zeros((0, 3))
        counts = np.zeros(0, dtype=np.int64)
        colours = np.zeros((0, 3), dtype=np.uint8)
        return cls(nothing, colours, counts, np.zeros(0), (), nothing, np.zeros((0, 3, 3)), np.zeros((0, 2)))

    @property
    def up(self) -> Vectors:
        """(3,) away from the ground, as far as the cameras agree on it."""
        down = self.rotations[:, 1].mean(axis=0) if len(self.rotations) else np.array([0.0, 1.0, 0.0])
        length = float(np.linalg.norm(down))
        return np.asarray(-down / length) if length > 1e-3 else np.array([0.0, -1.0, 0.0])

    @cached_property
    def extent(self) -> float:
        """The usual size: the diagonal of the box around most points and all cameras."""
        low, high = self.box
        return max(float(np.linalg.norm(high - low)), 1e-9) if len(self.points) or len(self.centres) else 1.0

    @property
    def lookout(self) -> Vectors:
        """(3,) unit vector from the middle to where everything is seen best from, a little above the ground.

        From behind the cameras if they look the same way, as along a wall; else, as around an object, from beside.
        """
        forward = self.rotations[:, 2].mean(axis=0) if len(self.rotations) else np.array([0.0, 0.0, 1.0])
        if np.linalg.norm(forward) < _ALIKE:
            forward = self.rotations[0, 0]
        level = forward - (forward @ self.up) * self.up
        length = float(np.linalg.norm(level))
        away = _ABOVE * self.up - level / length if length > 1e-3 else -forward  # straight down, or up
        return np.asarray(away / np.linalg.norm(away))

    @property
    def middle(self) -> Vectors:
        """(3,) of the box around most points and all cameras."""
        return np.asarray(self.box.mean(axis=0))

    @cached_property
    def box(self) -> Vectors:
        """(2, 3) corners of the box around most points and all cameras."""
        parts = [self.centres] if len(self.centres) else []
        if len(self.points):
            parts.append(np.percentile(self.points, _USUAL, axis=0))
        every = np.concatenate(parts) if parts else np.zeros((1, 3))
        return np.stack([every.min(axis=0), every.max(axis=0)])

    def frusta(self, depth: float) -> Vectors:
        """(C, 5, 3) the centre of each camera, and the corners of its image `depth` in front of it, clockwise."""
        rays = np.concatenate([CORNERS * self.reach[:, None], np.ones((len(self.reach), 4, 1))], axis=2)  # (C, 4, 3)
        corners = self.centres[:, None] + depth * rays @ self.rotations
        return np.concatenate([self.centres[:, None], corners], axis=1)
