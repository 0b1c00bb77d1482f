"""Random scenes of a few metres around the origin: ground, backdrop and objects, textured with images.

x right, y down, z away from the viewers, who stand at negative z some 5 to 10 units off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.io.images import Image
from linglue.training.images.image_set import Deck
from linglue.training.images.warp import fill, mosaic, pyramid
from linglue.training.sources.renderer import Surface, quad, relief
from linglue.types import ImageSize

Texture = Sequence[Image]  # pyramid
Vectors = NDArray[np.float64]
RELIEF_CELLS = 32  # per side


@dataclass(frozen=True)
class WorldConfig:
    """What a scene is made of; probabilities unless said otherwise."""

    ground: float = 0.55
    terrain: float = 0.12  # a relief instead of a flat ground
    wall: float = 0.4  # behind everything, facing the viewers more or less
    corner: float = 0.25  # two walls that meet
    cliff: float = 0.25  # a relief as backdrop; otherwise there is none
    objects: tuple[int, int] = (2, 5)  # fewest and most
    box: float = 0.5  # of an object; otherwise a poster
    boulder: float = 0.12  # of an object: a small relief
    tiled: float = 0.25  # large surfaces on which one piece of an image repeats, as windows do
    mosaic: float = 0.45  # large surfaces of several images: more to see from close by
    twin: float = 0.25  # objects that look the same as the one before


@dataclass(frozen=True, eq=False)
class World:
    """A scene, and the same with reliefs flattened: quick to look at when cameras are placed."""

    surfaces: list[Surface]
    flat: list[Surface]


def build_world(deck: Deck, config: WorldConfig, rng: np.random.Generator) -> World:
    """A random scene; its objects stay within 4.5 units of the origin.

    Args:
        deck: textures.
        config: what there is in a scene.
        rng: decides everything random.
    """
    builder = _Builder(deck, config, rng)
    floor = rng.uniform(1.0, 2.2)
    draw = rng.random()
    if draw < config.ground:
        builder.floor(floor)
    elif draw < config.ground + config.terrain:
        builder.terrain(floor)
    draw = rng.random()
    if draw < config.wall:
        builder.wall(floor)
    elif draw < config.wall + config.corner:
        builder.corner(floor)
    elif draw < config.wall + config.corner + config.cliff:
        builder.cliff(floor)
    for _ in range(int(rng.integers(config.objects[0], config.objects[1] + 1))):
        builder.thing(floor)
    return World(builder.surfaces, builder.flat)


class _Builder:
    """Collects surfaces."""

    def __init__(self, deck: Deck, config: WorldConfig, rng: np.random.Generator) -> None:
        self.deck, self.config, self.rng = deck, config, rng
        self.surfaces: list[Surface] = []
        self.flat: list[Surface] = []
        self._last: Texture | None = None  # of the object before

    def floor(self, y: float) -> None:
        side = self.rng.uniform(11, 16)
        texture = pyramid(self._large_picture(side, side))
        # Seen from above, u runs right and v towards the viewers.
        self._quad(texture, [-side / 2, y, side / 2 + 1], [side, 0, 0], [0, 0, -side])

    def terrain(self, y: float) -> None:
        side = self.rng.uniform(10, 14)
        self._relief([-side / 2, y, side / 2 + 1], [side, 0, 0], [0, 0, -side], self.rng.uniform(0.2, 0.5))

    def wall(self, floor: float) -> None:
        width, height = self.rng.uniform(9, 15), self.rng.uniform(5, 9)
        right = width * _heading(self.rng.uniform(-0.5, 0.5))
        middle = np.array([self.rng.uniform(-1, 1), 0, self.rng.uniform(2.5, 5.5)])
        corner = middle - right / 2 + [0, floor - height, 0]
        self._quad(pyramid(self._large_picture(width, height)), corner, right, [0, height, 0])

    def corner(self, floor: float) -> None:
        height, inner = self.rng.uniform(5, 9), self.rng.uniform(-0.5, 0.5)
        edge = np.array([self.rng.uniform(-2, 2), floor - height, self.rng.uniform(2.5, 5)])
        if self.rng.random() < 0.5:  # the edge away from the viewers, as in a room; else towards them, as of a house
            left, right = -_heading(inner + 0.8), _heading(inner - 0.8)
        else:
            left, right = -_heading(inner - 0.7), _heading(inner + 0.7)
        for direction in (left, right):
            width = self.rng.uniform(6, 10)
            start = edge + width * direction if direction is left else edge
            texture = pyramid(self._large_picture(width, height))
            self._quad(texture, start, width * (-direction if direction is left else direction), [0, height, 0])

    def cliff(self, floor: float) -> None:
        width, height = self.rng.uniform(9, 13), self.rng.uniform(5, 8)
        right = width * _heading(self.rng.uniform(-0.4, 0.4))
        corner = np.array([0, floor - height, self.rng.uniform(2.5, 4.5)]) - right / 2
        self._relief(corner, right, [0, height, 0], self.rng.uniform(0.3, 0.8))

    def thing(self, floor: float) -> None:
        """A box or boulder on the floor, or a poster in the air."""
        position = np.array([self.rng.uniform(-3.2, 3.2), floor, self.rng.uniform(-2.2, 2.2)])
        draw = self.rng.random()
        if draw < self.config.box:
            self._box(position)
        elif draw < self.config.box + self.config.boulder:
            right = self.rng.uniform(2.5, 4) * _heading(self.rng.uniform(-0.6, 0.6))
            height = self.rng.uniform(2, 3.5)
            self._relief(position - right / 2 - [0, height, 0], right, [0, height, 0], self.rng.uniform(0.1, 0.3))
        else:
            self._poster(position)

    def _box(self, position: Vectors) -> None:
        width, depth = self.rng.uniform(0.8, 2.6, 2)
        height = self.rng.uniform(0.8, 3.2)
        angle = self.rng.uniform(-0.8, 0.8)
        a, b = (
            width * _heading(angle),
            depth * _heading(angle + np.pi / 2),
        )  # along the front, and away from the viewers
        down = np.array([0, height, 0])
        front = position - (a + b) / 2 - down
        picture = self._small(width, height)
        alike = self.rng.random() < 0.5
        side = picture if alike else self._small(depth, height)
        self._quad(picture, front, a, down)
        self._quad(side, front + b, -b, down)  # left
        self._quad(side, front + a, b, down)  # right
        self._quad(picture if alike else side, front + b, a, -b)  # top

    def _poster(self, position: Vectors) -> None:
        width, height = self.rng.uniform(1.2, 3.2, 2)
        across = _heading(self.rng.uniform(-0.9, 0.9))
        lean = self.rng.uniform(-0.6, 0.6)
        away = np.cross(across, [0, 1, 0])
        down = np.cos(lean) * np.array([0, 1, 0]) + np.sin(lean) * away
        middle = position - [0, self.rng.uniform(0.5, 3.5), 0]
        corner = middle - (width * across + height * down) / 2
        self._quad(self._small(width, height), corner, width * across, height * down)

    def _quad(self, texture: Texture, corner: Sequence[float] | Vectors, right: object, down: object) -> None:
        surface = quad(texture, np.asarray(corner, float), np.asarray(right, float), np.asarray(down, float))
        self.surfaces.append(surface)
        self.flat.append(surface)

    def _relief(self, corner: Sequence[float] | Vectors, right: object, down: object, amplitude: float) -> None:
        origin, a, b = np.asarray(corner, float), np.asarray(right, float), np.asarray(down, float)
        height = amplitude * _bumps(RELIEF_CELLS + 1, self.rng)
        width, length = float(np.linalg.norm(a)), float(np.linalg.norm(b))
        picture = self._large_picture(width, length) if width > 5 else self._small_picture(width, length)
        texture = pyramid(_shade(picture, height, width, self.rng))
        self.surfaces.append(relief(texture, origin, a, b, height))
        self.flat.append(quad(texture, origin, a, b))

    def _small(self, width: float, height: float) -> Texture:
        """The texture of an object, sometimes that of the one before."""
        if self._last is None or self.rng.random() >= self.config.twin:
            self._last = pyramid(self._small_picture(width, height))
        return self._last

    def _small_picture(self, width: float, height: float) -> Image:
        return fill(self.deck.draw(), _texels(width, height, 560), self.rng)

    def _large_picture(self, width: float, height: float) -> Image:
        draw = self.rng.random()
        if draw < self.config.tiled:
            columns, rows = int(self.rng.integers(3, 7)), int(self.rng.integers(2, 5))
            tile = _texels(width / columns, height / rows, 1300 // max(columns, rows))
            return np.tile(fill(self.deck.draw(), tile, self.rng), (rows, columns, 1))
        if draw < self.config.tiled + self.config.mosaic:
            columns, rows = (3, 2) if width > 1.3 * height else (2, 2)
            return mosaic(self.deck, rows, columns, _texels(width / columns, height / rows, 560), self.rng)
        return fill(self.deck.draw(), _texels(width, height, 960), self.rng)


def _heading(angle: float) -> Vectors:
    """(3,) level direction: +x rotated by the angle (radians) towards +z."""
    return np.array([np.cos(angle), 0, np.sin(angle)])


def _texels(width: float, height: float, longer: int) -> ImageSize:
    """Size in texels of a surface of the given size in the world."""
    scale = longer / max(width, height)
    return ImageSize(max(48, round(width * scale)), max(48, round(height * scale)))


def _bumps(side: int, rng: np.random.Generator) -> Vectors:
    """(side, side) smooth random heights of about unit amplitude, of two wavelengths."""
    height = np.zeros((side, side))
    for count, share in ((int(rng.integers(4, 7)), 1.0), (int(rng.integers(8, 12)), 0.35)):
        knots = rng.normal(0, share, (count, count)).astype(np.float32)
        height += cv2.resize(knots, (side, side), interpolation=cv2.INTER_CUBIC)
    return height


def _shade(picture: Image, height: Vectors, width: float, rng: np.random.Generator) -> Image:
    """The picture with the light and shade of its relief under a fixed lamp, the same in all views."""
    dy, dx = np.gradient(height, width / height.shape[1])
    angle = rng.uniform(0, 2 * np.pi)
    lit = np.clip(1 + 0.5 * (np.cos(angle) * dx + np.sin(angle) * dy), 0.4, 1.5).astype(np.float32)
    lit = cv2.resize(lit, (picture.shape[1], picture.shape[0]), interpolation=cv2.INTER_LINEAR)
    return np.asarray(cv2.multiply(picture, cv2.merge([lit, lit, lit]), dtype=cv2.CV_8U), dtype=np.uint8)
