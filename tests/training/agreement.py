"""Do two images show the same thing at points that are said to correspond?"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from linglue.io.images import Image, to_grey
from linglue.training.sources.interface import ImagePair, Mapper, grid_points


def patch_correlations(
    pair: ImagePair, radius: float = 6.0, grid: int = 40, shift: tuple[float, float] = (0, 0)
) -> np.ndarray:
    """(M,) normalised correlation of patches of image 0 with what image 1 shows where their pixels are mapped to.

    Patches of which every pixel is visible, and in which there is something to see. `shift` pretends an error of the
    mapping, in pixels of image 1.
    """
    grey = [cv2.GaussianBlur(to_grey(i), (0, 0), 1.5).astype(np.float32) for i in (pair.image0, pair.image1)]
    height, width = pair.image0.shape[:2]
    centres = radius + grid_points(int(width - 2 * radius), int(height - 2 * radius), grid)
    offsets = grid_points(3, 3, 7) * radius - radius  # ±radius
    points = centres[:, None] + offsets[None]
    mapped, visible = pair.one_from_zero(points.reshape(-1, 2))
    shape = points.shape[:2]
    seen = visible.reshape(shape).all(axis=1)
    mapped = np.nan_to_num(mapped).reshape(*shape, 2).astype(np.float32)

    def read(image: np.ndarray, at: np.ndarray) -> np.ndarray:
        at = at.astype(np.float32)
        return cv2.remap(image, at[..., 0], at[..., 1], cv2.INTER_LINEAR)

    a, b = read(grey[0], points[seen]), read(grey[1], mapped[seen] + shift)
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    spread = a.std(axis=1)
    textured = spread > 12
    a, b = a[textured], b[textured]
    return (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-6)


def best_shift(pair: ImagePair) -> np.ndarray:
    """(2,) the error of the mapping in pixels of image 1: the shift of best agreement, by a parabola."""
    found = []
    for step in ((1, 0), (0, 1)):
        low, middle, high = (patch_correlations(pair, shift=(k * step[0], k * step[1])).mean() for k in (-1, 0, 1))
        found.append((low - high) / (2 * (low - 2 * middle + high)))
    return np.array(found)


def assert_pixels_agree(pairs: Sequence[ImagePair], fewest: int) -> None:
    """At mapped points both views show the same, to a fraction of a pixel; there must be `fewest` patches at least."""
    every = np.concatenate([patch_correlations(pair) for pair in pairs])
    assert len(every) > fewest
    assert np.median(every) > 0.97 and np.mean(every > 0.8) > 0.97
    errors = np.abs([best_shift(pair) for pair in pairs])
    assert np.median(errors) < 0.03 and errors.max() < 0.2


def shared(pair: ImagePair, grid: int = 24) -> tuple[float, float]:
    """Share of image 0 that is visible in image 1, and of image 1 in image 0, measured on grid² points."""

    def share(image: Image, mapper: Mapper) -> float:
        return float(mapper(grid_points(image.shape[1], image.shape[0], grid))[1].mean())

    return share(pair.image0, pair.one_from_zero), share(pair.image1, pair.zero_from_one)


def inside(points: np.ndarray, image: Image) -> np.ndarray:
    """(N,) which of the (N, 2) points lie between the centres of the image's border pixels; NaN does not."""
    x, y = ((points >= 0) & (points <= [image.shape[1] - 1, image.shape[0] - 1])).T
    return x & y
