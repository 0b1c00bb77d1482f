"""Sampling textures without aliasing: image pyramids, perspective warps, mosaics of images."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.io.images import Image
from linglue.training.images.image_set import Deck
from linglue.types import ImageSize

Matrix = NDArray[np.float64]  # (3, 3) homography, maps (x, y, 1) up to scale
LEVELS = 4


def pyramid(image: Image) -> list[Image]:
    """The image and its halvings; pixel (x, y) of the image is pixel (x, y) / 2^k of level k."""
    levels = [image]
    while len(levels) < LEVELS and min(levels[-1].shape[:2]) >= 32:
        levels.append(np.asarray(cv2.pyrDown(levels[-1]), dtype=np.uint8))
    return levels


def level_limits(count: int) -> list[float]:
    """Which pyramid level a pixel is read from: at least level k where w / ∛det(H) is under the k-th number.

    H takes pixels to texels and w is its third coordinate. A pixel covers det(H) / w³ texels, the Jacobian determinant
    of a homography; level k serves square roots of that area from 2^(k - ½) on.
    """
    return [float("inf"), *(4.0 ** ((0.5 - k) / 3) for k in range(1, count))]


def warp(levels: Sequence[Image], texture_from_view: Matrix, size: ImageSize) -> tuple[Image, NDArray[np.bool_]]:
    """The view (H, W, 3) of a texture, and (H, W) where the texture covers it.

    The homography must have a positive third coordinate all over the view.

    Args:
        levels: of `pyramid`.
        texture_from_view: (3, 3) homography.
        size: of the view.
    """
    view = warp_level(levels, 0, texture_from_view, size)
    w = linear(texture_from_view[2] / np.cbrt(np.linalg.det(texture_from_view)), 0, size.width, 0, size.height)
    for k, limit in enumerate(level_limits(len(levels))):
        if k and w.min() < limit:
            cv2.copyTo(warp_level(levels, k, texture_from_view, size), (w < limit).view(np.uint8), view)
    full = np.full(levels[0].shape[:2], 255, dtype=np.uint8)
    return view, _warp(full, texture_from_view, size, cv2.BORDER_CONSTANT) == 255


def warp_level(levels: Sequence[Image], level: int, texture_from_view: Matrix, size: ImageSize) -> Image:
    """The view (H, W, 3) of one level of a pyramid; beyond the texture, its border continues.

    Args:
        levels: the pyramid, of `pyramid`.
        level: which of them is read.
        texture_from_view: (3, 3) from the view to the finest level.
        size: of the view.
    """
    level_from_texture = np.diag([0.5**level, 0.5**level, 1.0])
    return _warp(levels[level], level_from_texture @ texture_from_view, size, cv2.BORDER_REPLICATE)


def linear(row: NDArray[np.float64], x0: int, x1: int, y0: int, y1: int) -> NDArray[np.float32]:
    """(y1 - y0, x1 - x0) values of the linear function row · (x, y, 1) at the pixels of a window."""
    across = (row[0] * np.arange(x0, x1) + row[2]).astype(np.float32)
    return np.asarray(across[None, :] + (row[1] * np.arange(y0, y1)).astype(np.float32)[:, None])


def _warp(texture: Image, texture_from_view: Matrix, size: ImageSize, border: int) -> Image:
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(
        cv2.warpPerspective(texture, texture_from_view, tuple(size), flags=flags, borderMode=border), dtype=np.uint8
    )


def mosaic(deck: Deck, rows: int, columns: int, cell: ImageSize, rng: np.random.Generator) -> Image:
    """rows × columns random images, each cropped to a random part that fills its cell.

    Args:
        deck: where the images come from.
        rows: of cells.
        columns: of cells.
        cell: its size in pixels.
        rng: chooses the parts.
    """
    canvas = np.empty((rows * cell.height, columns * cell.width, 3), dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            y, x = row * cell.height, column * cell.width
            canvas[y : y + cell.height, x : x + cell.width] = fill(deck.draw(), cell, rng)
    return canvas


def fill(image: Image, size: ImageSize, rng: np.random.Generator) -> Image:
    """A random part of the image, of the aspect of `size` and as large as possible, resized to `size`.

    Args:
        image: (H, W, 3).
        size: of the result.
        rng: chooses the part.
    """
    height, width = image.shape[:2]
    scale = max(size.width / width, size.height / height)
    crop_width, crop_height = min(width, round(size.width / scale)), min(height, round(size.height / scale))
    x, y = int(rng.integers(width - crop_width + 1)), int(rng.integers(height - crop_height + 1))
    crop = image[y : y + crop_height, x : x + crop_width]
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(crop, tuple(size), interpolation=method), dtype=np.uint8)
