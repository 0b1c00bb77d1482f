"""Views of a flat canvas of images: strong perspective, rotation, zoom, crops with partial overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera
from linglue.geometry.homography import apply
from linglue.io.images import Image
from linglue.training.images.image_set import Deck
from linglue.training.images.photometric import PhotometricConfig, perturb
from linglue.training.images.warp import Matrix, fill, mosaic, pyramid, warp
from linglue.training.sources.interface import Flags, ImageGroup, Points, grid_points
from linglue.types import ImageSize

ATTEMPTS = 1000  # times a whole arrangement is drawn before giving up; some images allow few
CANDIDATES = 40  # second views among which the one of the wanted overlap is chosen
RIM = 3.0  # pixels of the canvas; keypoints that close to its edge are made by what lies beyond


@dataclass(frozen=True)
class HomographyConfig:
    """How many views there are, and what they may look like. Angles in degrees, lengths in pixels."""

    views: int = 2  # of a canvas; all pairs of them that overlap are used
    longer_side: tuple[int, int] = (480, 1024)
    aspect: tuple[float, float] = (0.56, 1.0)  # shorter by longer side; half of the views stand upright
    zoom: float = 3.0  # largest ratio of the scales of the two views
    magnification: tuple[float, float] = (0.75, 1.25)  # pixels per canvas pixel of the closer view
    mild_tilt: float = 25.0  # of one view against the canvas
    strong_tilt: float = 60.0  # of the other one
    roll: float = 45.0
    any_roll: float = 0.15  # share of views rotated by any angle
    overlap: tuple[float, float] = (0.15, 0.95)  # geometric mean of the shares of the two images seen in the other
    mosaic: float = 0.2  # share of canvases made of several images; far views always need them
    covered: float = 0.7  # least share of a view that shows the canvas, the rest shows some other image
    photometric: PhotometricConfig = field(default_factory=PhotometricConfig)


@dataclass(frozen=True, eq=False)
class _View:
    """A camera above the canvas."""

    size: ImageSize
    view_from_canvas: Matrix

    @property
    def canvas_from_view(self) -> Matrix:
        return np.asarray(np.linalg.inv(self.view_from_canvas))


@dataclass(frozen=True, eq=False)
class _PlaneMapper:
    """Maps points of one view of the canvas into the other."""

    canvas_from_a: Matrix
    b_from_canvas: Matrix
    canvas_size: ImageSize
    size_b: ImageSize

    def __call__(self, points: Points) -> tuple[Points, Flags]:
        on_canvas = apply(self.canvas_from_a, points, front_only=True)
        mapped = apply(self.b_from_canvas, on_canvas, front_only=True)
        limit = np.array(self.canvas_size) - 1
        depth = np.minimum(on_canvas, limit - on_canvas).min(axis=1)  # distance to the edge of the canvas
        frame = (mapped >= 0).all(axis=1) & (mapped <= np.array(self.size_b) - 1).all(axis=1)
        # NaN says "cannot be told"; what is certainly off the canvas or behind the camera is just out of frame.
        mapped = np.where(np.isnan(mapped), -1e6, mapped)
        mapped[np.abs(depth) < RIM] = np.nan
        return mapped, frame & (depth >= RIM)


class HomographySource:
    """Draws views of one image, or of a wall of images."""

    def __init__(self, config: HomographyConfig | None = None) -> None:
        self.config = config or HomographyConfig()

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn."""
        return asdict(self.config)

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One new group; its first two views overlap within the configured bounds, the others if there is room."""
        for _ in range(ATTEMPTS):
            scales = self._scales(rng)
            deck = Deck(images, rng)
            canvas = self._canvas(deck, min(scales), rng)
            size = ImageSize(canvas.shape[1], canvas.shape[0])
            views = self._views(size, scales, rng)
            if views is not None:
                return self._render(canvas, views, deck, rng)
        raise LinGlueError(f"no pair of views with an overlap in {self.config.overlap} found in {ATTEMPTS} attempts")

    def _scales(self, rng: np.random.Generator) -> tuple[float, float]:
        """Pixels per canvas pixel of the two views, in random order."""
        closer = rng.uniform(*self.config.magnification)
        ratio = self.config.zoom ** (rng.random() ** 1.3)
        return (closer, closer / ratio) if rng.random() < 0.5 else (closer / ratio, closer)

    def _canvas(self, deck: Deck, smallest: float, rng: np.random.Generator) -> Image:
        image = deck.draw()
        enough = max(image.shape[:2]) * smallest >= 0.65 * self.config.longer_side[0]
        if enough and rng.random() >= self.config.mosaic:
            return image
        sides = np.array([640, 480]) if rng.random() < 0.7 else np.array([480, 600])
        columns, rows = (2, 2) if smallest > 0.45 else (3, 2 + int(rng.random() < 0.5))
        return mosaic(deck, rows, columns, ImageSize(int(sides[0]), int(sides[1])), rng)

    def _views(self, canvas: ImageSize, scales: tuple[float, float], rng: np.random.Generator) -> list[_View] | None:
        """The views; each after the first overlaps with it as much as was drawn, so that overlaps are spread evenly."""
        config = self.config
        wanted = rng.uniform(*config.overlap)
        strong = int(rng.integers(2))
        tilts = [config.strong_tilt if k == strong else config.mild_tilt for k in (0, 1)]
        sizes = [self._size(canvas, scale, rng) for scale in scales]
        first = self._view(canvas, sizes[0], scales[0], tilts[0], self._roll(rng) * 0.2, rng)
        if first is None:
            return None
        second = self._partner(first, wanted, canvas, sizes[1], scales[1], tilts[1], rng)
        if second is None:
            return None
        views = [first, second]
        for _ in range(config.views - 2):
            scale = float(np.exp(rng.uniform(*np.log([min(scales), max(scales)]))))
            tilt = config.strong_tilt if rng.random() < 0.5 else config.mild_tilt
            size = self._size(canvas, scale, rng)
            further = self._partner(first, rng.uniform(*config.overlap), canvas, size, scale, tilt, rng)
            views += [] if further is None else [further]
        return views

    def _partner(
        self,
        first: _View,
        wanted: float,
        canvas: ImageSize,
        size: ImageSize,
        scale: float,
        max_tilt: float,
        rng: np.random.Generator,
    ) -> _View | None:
        """Among many views the one whose overlap with the first is closest to `wanted`; None if all have too little."""
        roll = self._roll(rng)
        best: tuple[float, _View] | None = None
        for _ in range(CANDIDATES):
            view = self._view(canvas, size, scale, max_tilt, roll, rng)
            if view is None:
                continue
            overlap = _overlap(first, view, canvas)
            if self.config.overlap[0] <= overlap and (best is None or abs(overlap - wanted) < best[0]):
                best = abs(overlap - wanted), view
        return None if best is None else best[1]

    def _size(self, canvas: ImageSize, scale: float, rng: np.random.Generator) -> ImageSize:
        longer = min(rng.uniform(*self.config.longer_side), max(canvas) * scale)
        longer = max(longer, 0.75 * self.config.longer_side[0])
        sides = round(longer), round(longer * rng.uniform(*self.config.aspect))
        return ImageSize(*sides) if rng.random() < 0.5 else ImageSize(*sides[::-1])

    def _roll(self, rng: np.random.Generator) -> float:
        limit = 180.0 if rng.random() < self.config.any_roll else self.config.roll
        return float(np.deg2rad(rng.uniform(-limit, limit)))

    def _view(
        self, canvas: ImageSize, size: ImageSize, scale: float, max_tilt: float, roll: float, rng: np.random.Generator
    ) -> _View | None:
        """A camera that looks at a random point of the canvas, or None if it sees too little of it."""
        tilt, direction = np.deg2rad(max_tilt) * np.sqrt(rng.random()), rng.uniform(0, 2 * np.pi)
        focal = max(size) * rng.uniform(0.8, 2.0)
        half = 0.5 * np.array(size) / scale  # of the part seen, were there no tilt
        margin = np.minimum(0.6 * half, 0.5 * np.array(canvas))
        centre = rng.uniform(margin, np.array(canvas) - margin)
        rotation = _rotation_z(roll) @ _rotation_z(direction) @ _rotation_x(tilt) @ _rotation_z(-direction)
        pose = np.stack([rotation[:, 0], rotation[:, 1], [0, 0, focal / scale]], axis=1)  # camera from canvas - centre
        shift = np.array([[1, 0, -centre[0]], [0, 1, -centre[1]], [0, 0, 1]])
        view = _View(size, Camera.centred(size, focal).matrix @ pose @ shift)
        seen = apply(view.canvas_from_view, grid_points(*size, 12), front_only=True)
        if np.isnan(seen).any():  # the horizon is in the frame
            return None
        covered = ((seen >= 0) & (seen <= np.array(canvas) - 1)).all(axis=1).mean()
        return view if covered >= self.config.covered else None

    def _render(self, canvas: Image, views: list[_View], deck: Deck, rng: np.random.Generator) -> ImageGroup:
        levels = pyramid(canvas)
        size = ImageSize(canvas.shape[1], canvas.shape[0])
        images = []
        for view in views:
            image, covered = warp(levels, view.canvas_from_view, view.size)
            if not covered.all():
                cv2.copyTo(_beyond(deck, view.size, rng), (~covered).view(np.uint8), image)
            images.append(perturb(image, rng, self.config.photometric))
        pairs = [
            (i, j)
            for i, j in combinations(range(len(views)), 2)
            if _overlap(views[i], views[j], size) >= self.config.overlap[0]
        ]
        return ImageGroup(images, pairs, lambda a, b: _mapper(views[a], views[b], size))


def _mapper(a: _View, b: _View, canvas: ImageSize) -> _PlaneMapper:
    return _PlaneMapper(a.canvas_from_view, b.view_from_canvas, canvas, b.size)


def _beyond(deck: Deck, size: ImageSize, rng: np.random.Generator) -> Image:
    """(H, W, 3) what is seen past the edge of the canvas: nothing that either view shows elsewhere."""
    if deck.exhausted:
        return np.full((size.height, size.width, 3), rng.integers(30, 225), dtype=np.uint8)
    return fill(deck.draw(), size, rng)


def _overlap(zero: _View, one: _View, canvas: ImageSize) -> float:
    """Geometric mean of the shares of the two images that are seen in the other."""
    shares = [_mapper(a, b, canvas)(grid_points(*a.size, 12))[1].mean() for a, b in ((zero, one), (one, zero))]
    return float(np.sqrt(shares[0] * shares[1]))


def _rotation_z(angle: float) -> NDArray[np.float64]:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _rotation_x(angle: float) -> NDArray[np.float64]:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
