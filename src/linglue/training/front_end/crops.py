"""Pairs of augmented crops that show the same keypoints of clean images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linglue.features.linpoint import ASIDE
from linglue.geometry.homography import apply
from linglue.io.images import Image, to_grey
from linglue.training.front_end.lessons import Lesson
from linglue.training.images.photometric import PhotometricConfig, perturb
from linglue.training.images.warp import Matrix, pyramid, warp
from linglue.types import ImageSize

ATTEMPTS = 12  # pairs of crops drawn of one pair of images before the one with most in common is taken


@dataclass(frozen=True)
class CropConfig:
    """What the student sees. Angles in degrees."""

    side: int = 352  # pixels
    magnification: tuple[float, float] = (0.6, 1.7)  # pixels of a crop per pixel of the image
    scale: float = 2.5  # largest ratio of the magnifications of two crops
    rotation: float = 45.0  # between two crops, to either side
    any_rotation: float = 0.1  # share of pairs rotated by any angle
    upright: float = 0.3  # share of pairs rotated by less than a tenth of that
    stretch: float = 1.35  # largest ratio of the magnifications along and across
    perspective: float = 0.25  # relative change of magnification from the middle of a crop to its rim
    strength: tuple[float, float] = (0.2, 1.4)  # of the change of light, noise and blur


@dataclass(frozen=True, eq=False)
class Crop:
    """One crop: its pixels, which part of the image it shows, and the keypoints in it."""

    image: NDArray[np.uint8]  # (S, S) grey
    covered: NDArray[np.bool_]  # (S, S)
    points: NDArray[np.float32]  # (N, 2) where the network sees them: ASIDE from where they are in the crop
    scores: NDArray[np.float32]  # (N,)
    ids: NDArray[np.int64]  # (N,) keypoints of the lesson
    crop_from_image: Matrix  # to where the network sees points of the image


def draw_crops(
    images: tuple[Image, Image],
    lessons: tuple[Lesson, Lesson],
    matches: NDArray[np.int64],
    config: CropConfig,
    rng: np.random.Generator,
) -> tuple[Crop, Crop, NDArray[np.int64]]:
    """Two crops around a match, and which of their points match: (M, 2) indices into the points of both.

    `matches` (K, 2) are pairs of keypoints of the two lessons; one image and lesson twice, each keypoint with
    itself, makes pairs with exact correspondences.

    Args:
        images: two images, or one twice.
        lessons: what the teacher saw in each.
        matches: (K, 2) keypoints of the two lessons that show the same.
        config: how the crops differ.
        rng: decides everything random.
    """
    best: tuple[int, list[Matrix]] = (-1, [])
    for _ in range(ATTEMPTS):
        middle = matches[int(rng.integers(len(matches)))]
        centres = [lessons[k].keypoints[middle[k]] for k in (0, 1)]
        matrices = _matrices(centres, config, rng)
        seen = [
            _inside(apply(matrices[k], lessons[k].keypoints[matches[:, k]], front_only=True), config.side)
            for k in (0, 1)
        ]
        common = int((seen[0] & seen[1]).sum())
        if common > best[0]:
            best = (common, matrices)
        if common >= 100:
            break
    crops = [_crop(images[k], lessons[k], best[1][k], config, rng) for k in (0, 1)]
    row = [np.full(len(lessons[k].keypoints), -1) for k in (0, 1)]
    for k in (0, 1):
        row[k][crops[k].ids] = np.arange(len(crops[k].ids))
    pairs = np.stack([row[k][matches[:, k]] for k in (0, 1)], axis=1)
    return crops[0], crops[1], pairs[(pairs >= 0).all(axis=1)]


def _matrices(centres: list[NDArray[np.float32]], config: CropConfig, rng: np.random.Generator) -> list[Matrix]:
    """crop_from_image of two crops about the same centre."""
    low, high = np.log(config.magnification[0]), np.log(config.magnification[1])
    first = rng.uniform(low, high)
    second = float(np.clip(first + rng.uniform(-1, 1) * np.log(config.scale), low - 0.3, high + 0.3))
    draw = rng.random()
    limit = config.rotation
    if draw < config.any_rotation:
        limit = 180.0
    elif draw < config.any_rotation + config.upright:
        limit = 0.1 * limit
    between = np.deg2rad(rng.uniform(-limit, limit))
    own = np.deg2rad(rng.uniform(-15, 15))
    found = []
    for centre, size, angle in zip(centres, np.exp([first, second]), (own, own + between), strict=True):
        half = (config.side - 1) / 2
        offset = rng.uniform(-0.25, 0.25, 2) * config.side
        stretch = config.stretch ** rng.uniform(-0.5, 0.5)
        axis = rng.uniform(0, np.pi)
        tilt = rng.uniform(-1, 1, 2) * config.perspective / half
        linear = _rotation(-axis) @ np.diag([stretch, 1 / stretch, 1]) @ _rotation(axis) @ _rotation(angle)
        perspective = np.array([[1, 0, 0], [0, 1, 0], [tilt[0] / 2, tilt[1] / 2, 1]])
        matrix = _shift(half + offset[0], half + offset[1]) @ np.diag([size, size, 1]) @ linear
        matrix = matrix @ _shift(-centre[0], -centre[1])
        # Tilted about the middle of the crop, so that its magnification there stays what it is.
        found.append(_shift(half, half) @ perspective @ _shift(-half, -half) @ matrix)
    return found


def _crop(image: Image, lesson: Lesson, matrix: Matrix, config: CropConfig, rng: np.random.Generator) -> Crop:
    levels = pyramid(image)
    image, covered = warp(
        levels, np.asarray(np.linalg.inv(matrix), dtype=np.float64), ImageSize(config.side, config.side)
    )
    light = replace(PhotometricConfig(), strength=rng.uniform(*config.strength))
    seen = np.asarray(_shift(ASIDE, ASIDE) @ matrix)
    points = apply(seen, lesson.keypoints, front_only=True)
    ids = np.flatnonzero(_inside(points, config.side))
    return Crop(
        image=to_grey(perturb(image, rng, light)),
        covered=covered,
        points=points[ids].astype(np.float32),
        scores=lesson.scores[ids],
        ids=ids,
        crop_from_image=seen,
    )


def _inside(points: NDArray[np.float64], side: int) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        return np.asarray(((points >= 3) & (points <= side - 4)).all(axis=1))


def _rotation(angle: float) -> Matrix:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _shift(x: float, y: float) -> Matrix:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
