"""A still room of known geometry: images of it with exact intrinsics and poses, for tests of whole pipelines.

Textured by images in scikit-image's wheel and drawn by the renderer of training: two walls, a floor, two boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import ArrayLike
from skimage import data

from linglue.geometry.camera import Camera
from linglue.geometry.camera import View as TrueView
from linglue.geometry.pose import Pose
from linglue.training.images.warp import pyramid
from linglue.training.sources.renderer import Surface, colour, quad, see
from linglue.types import ImageSize

SIZE = ImageSize(480, 360)
FOCAL = 460.0  # pixels
TEXELS = 130  # per metre
FLOOR = 1.2  # metres below the origin
FOLDER = "room"


@dataclass(frozen=True, eq=False)
class View:
    """One image and its truth; metres, pixel centres at integers."""

    name: str  # below the folder that `write_images` is given
    image: np.ndarray  # (H, W, 3) uint8 RGB
    truth: TrueView

    @property
    def camera(self) -> Camera:
        return self.truth.camera

    @property
    def cam_from_world(self) -> np.ndarray:
        """(3, 4) rotation and translation."""
        return self.truth.cam_from_world.matrix


@lru_cache(maxsize=2)
def render(count: int = 8) -> tuple[View, ...]:
    """`count` images on an arc of 50 degrees around the room's middle, with a little noise each."""
    rng = np.random.default_rng(0)
    surfaces = _room()
    views = []
    for number, azimuth in enumerate(np.linspace(-25, 25, count)):
        view = _view(np.deg2rad(azimuth), height=0.35 * np.sin(1.7 * number), distance=6.0 + 0.3 * np.cos(number))
        image = colour(surfaces, see(surfaces, view), np.full((SIZE.height, SIZE.width, 3), 128, dtype=np.uint8))
        noisy = np.clip(image + rng.normal(0, 2.0, image.shape), 0, 255).round().astype(np.uint8)
        views.append(View(f"{FOLDER}/view {number}.png", noisy, view))
    return tuple(views)


def write_images(folder: Path, views: tuple[View, ...]) -> Path:
    """The images as PNG files under their names; returns the folder."""
    for view in views:
        path = folder / view.name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), cv2.cvtColor(view.image, cv2.COLOR_RGB2BGR))
    return folder


def _view(azimuth: float, height: float, distance: float) -> TrueView:
    """Stands on a circle around the origin (y points down) and looks at a point close to it."""
    centre = np.array([distance * np.sin(azimuth), -0.8 - height, -distance * np.cos(azimuth)])
    forward = np.array([0.4 * np.sin(3 * azimuth), 0.1, 0.4]) - centre
    forward /= np.linalg.norm(forward)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return TrueView(Camera.centred(SIZE, FOCAL), Pose.at(rotation, centre))


def _room() -> list[Surface]:
    """Walls that meet behind the origin, the floor, and two boxes on it."""
    walls = [data.stereo_motorcycle()[0], data.hubble_deep_field(), data.immunohistochemistry()]
    left_box = [data.astronaut(), data.coffee(), data.chelsea(), data.gravel()]
    right_box = [data.rocket(), data.coins(), data.page(), data.grass()]
    pictures = iter([*walls, *left_box, *right_box])

    def face(corner: ArrayLike, right: ArrayLike, down: ArrayLike) -> Surface:
        sides = [np.asarray(side, dtype=np.float64) for side in (right, down)]
        texels = [round(TEXELS * float(np.linalg.norm(side))) for side in sides]
        picture = next(pictures)
        rgb = picture if picture.ndim == 3 else cv2.cvtColor(picture, cv2.COLOR_GRAY2RGB)
        texture = cv2.resize(rgb, (texels[0], texels[1]), interpolation=cv2.INTER_AREA)
        return quad(pyramid(np.ascontiguousarray(texture)), np.asarray(corner, dtype=np.float64), *sides)

    def box(x: float, z: float, side: float, angle: float) -> list[Surface]:
        """Front, left, right and top of a cube that stands on the floor."""
        a = side * np.array([np.cos(angle), 0, np.sin(angle)])  # along the front, to the right
        b = side * np.array([-np.sin(angle), 0, np.cos(angle)])  # away from the viewers
        up, base = np.array([0, -side, 0]), np.array([x, FLOOR, z])
        return [
            face(base + up, a, -up),
            face(base + up + b, -b, -up),
            face(base + up + a, b, -up),
            face(base + up + b, a, -b),
        ]

    return [
        face([-4.2, -2.2, -0.6], [4.4, 0, 3.4], [0, 3.4, 0]),
        face([0.2, -2.2, 2.8], [4.4, 0, -3.4], [0, 3.4, 0]),
        face([-4.2, FLOOR, 2.8], [8.8, 0, 0], [0, 0, -5.2]),
        *box(-1.6, 0.1, 1.1, 0.35),
        *box(0.6, -0.4, 1.3, -0.3),
    ]
