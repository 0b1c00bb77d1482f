"""Views of a scene with depth: grounds, facades, boxes, posters and relief that occlude each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.camera import BEHIND, Camera, View
from linglue.geometry.pose import Pose
from linglue.io.images import Image
from linglue.training.images.image_set import Deck
from linglue.training.images.photometric import PhotometricConfig, perturb
from linglue.training.images.warp import fill
from linglue.training.sources.interface import Flags, ImageGroup, Points, grid_points
from linglue.training.sources.renderer import NEAR, NOTHING, Geometry, colour, see
from linglue.training.sources.world import World, WorldConfig, build_world
from linglue.types import ImageSize

ATTEMPTS = 200  # scenes drawn before giving up
CAMERAS = 12  # second cameras tried per scene
RIM = 2  # pixels around a jump in depth where a keypoint may belong to either side
BEND = 0.02  # relative second difference of inverse depth that counts as a jump: it is zero on any plane
TOLERANCE = 0.01  # relative difference of depths that are the same


@dataclass(frozen=True)
class ParallaxConfig:
    """How many cameras there are, and what they may do. Angles in degrees, lengths in pixels unless said otherwise."""

    views: int = 2  # of a scene; all pairs of them that overlap are used
    longer_side: tuple[int, int] = (480, 1024)
    aspect: tuple[float, float] = (0.56, 1.0)
    baseline: float = 60.0  # angle at the scene's middle between the cameras
    zoom: float = 3.0  # largest ratio of the scales of the two views
    roll: float = 45.0
    any_roll: float = 0.1
    upright: float = 0.4  # share of pairs with less than a tenth of that roll, as people hold cameras
    overlap: tuple[float, float] = (0.12, 0.95)  # geometric mean of the shares of the two images seen in the other
    world: WorldConfig = field(default_factory=WorldConfig)
    photometric: PhotometricConfig = field(default_factory=PhotometricConfig)


@dataclass(frozen=True, eq=False)
class DepthMapper:
    """Maps points of view a into view b by the exact depth under them, with occlusion."""

    a: Geometry
    b: Geometry
    doubtful_a: NDArray[np.bool_]  # (H, W) pixels near a jump in depth
    doubtful_b: NDArray[np.bool_]

    def __call__(self, points: Points) -> tuple[Points, Flags]:
        start: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
        pixel, framed_a = _pixels(start, self.a)
        face = np.where(framed_a, self.a.face[pixel[:, 1], pixel[:, 0]], NOTHING)
        known = (face != NOTHING) & ~self.doubtful_a[pixel[:, 1], pixel[:, 0]]
        inverse_depth = np.where(known, _inverse_depth(start, face, self.a), 1.0)
        mapped, depth = self.b.view.project(self.a.view.lift(start, 1 / inverse_depth), NEAR)

        target, framed_b = _pixels(mapped, self.b)
        face_b = self.b.face[target[:, 1], target[:, 0]]
        same = (face_b != NOTHING) & (self.b.surface[face_b] == self.a.surface[face])
        seen = np.abs(_inverse_depth(mapped, face_b, self.b) * depth - 1) < TOLERANCE
        doubtful = framed_b & self.doubtful_b[target[:, 1], target[:, 0]]
        sky = framed_a & (face == NOTHING)  # certainly without a partner
        mapped[sky] = BEHIND
        mapped[~sky & (~known | doubtful)] = np.nan
        return mapped, known & framed_b & ~doubtful & same & seen


def _pixels(points: Points, geometry: Geometry) -> tuple[NDArray[np.int64], Flags]:
    """(N, 2) the pixel that holds each point, clipped to the image, and (N,) whether it is in the frame."""
    camera = geometry.view.camera
    pixels = np.clip(np.rint(np.nan_to_num(points)), 0, np.array(camera.size) - 1).astype(np.int64)
    return pixels, camera.framed(points)


def _inverse_depth(points: Points, face: NDArray[np.int32], geometry: Geometry) -> NDArray[np.float64]:
    """(N,) inverse depth of the plane of each face under the points, exact between pixels too."""
    row = geometry.planes[face, 2]
    return np.asarray(row[:, 0] * points[:, 0] + row[:, 1] * points[:, 1] + row[:, 2])


def doubtful_pixels(geometry: Geometry) -> NDArray[np.bool_]:
    """(H, W) pixels within RIM of a jump in depth."""
    bend = np.abs(cv2.Laplacian(geometry.inverse_depth, cv2.CV_32F, ksize=1))
    jump = (bend > BEND * geometry.inverse_depth + 1e-6).view(np.uint8)
    return cv2.dilate(jump, np.ones((2 * RIM + 1, 2 * RIM + 1), dtype=np.uint8)).view(np.bool_)


class ParallaxSource:
    """Draws views of random scenes of textured, occluding surfaces."""

    def __init__(self, config: ParallaxConfig | None = None) -> None:
        self.config = config or ParallaxConfig()

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn."""
        return asdict(self.config)

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One new group; its first two views overlap within the configured bounds, the others if there is room."""
        for _ in range(ATTEMPTS):
            deck = Deck(images, rng)
            world = build_world(deck, self.config.world, rng)
            views = self._views(world, rng)
            if views is not None:
                return self._render(world, views, deck, rng)
        raise LinGlueError(f"no pair of views with an overlap in {self.config.overlap} found in {ATTEMPTS} scenes")

    def _views(self, world: World, rng: np.random.Generator) -> list[Geometry] | None:
        """The views; each after the first overlaps with it as much as was drawn, so that overlaps are spread evenly."""
        wanted = rng.uniform(*self.config.overlap)
        first = self._first_camera(rng)
        glance = see(world.flat, _shrunk(first))
        if (glance.face == NOTHING).mean() > 0.5:
            return None
        cameras = self._partners(world, glance, first, wanted, rng)
        zero = see(world.surfaces, first)
        one = self._best(world, zero, cameras)
        if one is None:
            return None
        views = [zero, one] if rng.random() < 0.5 else [one, zero]
        for _ in range(self.config.views - 2):
            cameras = self._partners(world, glance, first, rng.uniform(*self.config.overlap), rng)
            further = self._best(world, zero, cameras)
            views += [] if further is None else [further]
        return views

    def _partners(
        self, world: World, glance: Geometry, first: View, wanted: float, rng: np.random.Generator
    ) -> list[View]:
        """Three cameras whose overlap with the first is close to `wanted`, judged on small, flattened views."""
        roll, effort = self._roll(rng), rng.uniform(0.2, 1)
        tried: list[tuple[float, View]] = []
        for _ in range(CAMERAS):
            camera = self._second_camera(first, roll, effort, rng)
            tried.append((abs(_overlap(glance, see(world.flat, _shrunk(camera))) - wanted), camera))
            if tried[-1][0] < 0.06:
                break
        return [camera for _, camera in sorted(tried, key=lambda entry: entry[0])[:3]]

    def _best(self, world: World, zero: Geometry, cameras: Sequence[View]) -> Geometry | None:
        """What the first of the cameras sees that overlaps enough with view zero."""
        for camera in cameras:
            view = see(world.surfaces, camera)
            if self.config.overlap[0] <= _overlap(zero, view):
                return view
        return None

    def _first_camera(self, rng: np.random.Generator) -> View:
        size = self._size(rng)
        azimuth, elevation = np.deg2rad(rng.uniform(-30, 30)), np.deg2rad(rng.uniform(-5, 30))
        focal = max(size) * rng.uniform(0.9, 1.5)
        return _orbit(size, focal, azimuth, elevation, rng.uniform(6.0, 9.0), 0.1 * self._roll(rng), rng)

    def _second_camera(self, first: View, roll: float, effort: float, rng: np.random.Generator) -> View:
        """Moved around the scene, closer or farther, by up to `effort` (0 to 1) of what is allowed, and rolled."""
        size = self._size(rng)
        x, y, z = first.centre
        distance = float(np.linalg.norm(first.centre))
        azimuth = np.arctan2(x, -z) + np.deg2rad(self.config.baseline) * rng.uniform(-effort, effort)
        azimuth = np.clip(azimuth, -1.2, 1.2)  # stay in front of the backdrop
        elevation = np.clip(np.arcsin(-y / distance) + rng.normal(0, 0.25 * effort), -0.1, 0.9)
        zoom = self.config.zoom ** rng.uniform(-effort, effort)
        nearer = float(np.clip(distance / zoom ** rng.uniform(0.3, 1), 4.8, 14.0))
        focal = zoom * first.camera.focal * nearer / distance
        focal = float(np.clip(focal, 0.7 * max(size), 3.0 * max(size)))
        return _orbit(size, focal, float(azimuth), float(elevation), nearer, roll, rng)

    def _size(self, rng: np.random.Generator) -> ImageSize:
        longer = rng.uniform(*self.config.longer_side)
        sides = round(longer), round(longer * rng.uniform(*self.config.aspect))
        return ImageSize(*sides) if rng.random() < 0.6 else ImageSize(*sides[::-1])

    def _roll(self, rng: np.random.Generator) -> float:
        draw = rng.random()
        limit = self.config.roll
        if draw < self.config.any_roll:
            limit = 180.0
        elif draw < self.config.any_roll + self.config.upright:
            limit = 0.1 * limit
        return float(np.deg2rad(rng.uniform(-limit, limit)))

    def _render(self, world: World, views: list[Geometry], deck: Deck, rng: np.random.Generator) -> ImageGroup:
        images = [
            perturb(colour(world.surfaces, view, _sky(view.view.camera.size, deck, rng)), rng, self.config.photometric)
            for view in views
        ]
        doubtful = [doubtful_pixels(view) for view in views]
        pairs = [
            (i, j)
            for i, j in combinations(range(len(views)), 2)
            if _overlap(views[i], views[j]) >= self.config.overlap[0]
        ]
        return ImageGroup(images, pairs, lambda a, b: DepthMapper(views[a], views[b], doubtful[a], doubtful[b]))


def _orbit(
    size: ImageSize,
    focal: float,
    azimuth: float,
    elevation: float,
    distance: float,
    roll: float,
    rng: np.random.Generator,
) -> View:
    """A camera at the given position around the origin (angles in radians) that looks about there."""
    level = np.array([np.sin(azimuth), 0, -np.cos(azimuth)])
    centre = distance * (np.cos(elevation) * level + np.sin(elevation) * np.array([0, -1, 0]))
    reach = 0.25 * max(size) / focal * distance  # a quarter of what is in the frame
    forward = rng.uniform(-reach, reach, 3) * [1, 0.5, 1] - centre
    forward /= np.linalg.norm(forward)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    upright = np.stack([right, np.cross(forward, right), forward])
    c, s = np.cos(roll), np.sin(roll)
    rotation = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ upright
    return View(Camera.centred(size, focal), Pose.at(rotation, centre))


def _shrunk(view: View) -> View:
    """The same view in a tenth of the pixels per side."""
    old = view.camera.size
    size = ImageSize(old.width // 10, old.height // 10)
    return View(Camera.centred(size, view.camera.focal * size.width / old.width), view.cam_from_world)


def _overlap(zero: Geometry, one: Geometry) -> float:
    """Geometric mean of the shares of the two images that are seen in the other."""
    shares = []
    for a, b in ((zero, one), (one, zero)):
        sure_a, sure_b = (np.zeros(g.face.shape, dtype=np.bool_) for g in (a, b))
        shares.append(DepthMapper(a, b, sure_a, sure_b)(grid_points(*a.view.camera.size, 16))[1].mean())
    return float(np.sqrt(shares[0] * shares[1]))


def _sky(size: ImageSize, deck: Deck, rng: np.random.Generator) -> Image:
    """(H, W, 3) what is behind the scene: a gradient or some image that is nowhere else."""
    if rng.random() < 0.3 and not deck.exhausted:
        return fill(deck.draw(), size, rng)
    knots = np.clip(rng.uniform(60, 230) + rng.normal(0, 25, (3, 3, 3)), 0, 255).astype(np.uint8)
    return np.asarray(cv2.resize(knots, tuple(size), interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
