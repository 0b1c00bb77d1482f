"""Where pixels are: centres sit at integers, so an image covers [−½, size − ½] along each axis.

All arithmetic with that half pixel is here; COLMAP's other origin is in `linglue.geometry.colmap`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Coordinates = TypeVar("Coordinates", bound=Any)  # numpy array, torch tensor or number

_HALF = 0.5  # pixels from the centre of a pixel to its edge


def corner_from_pixel(points: Coordinates) -> Coordinates:
    """Points counted from the corner of the top-left pixel instead of its centre."""
    return points + _HALF


def pixel_from_corner(points: Coordinates) -> Coordinates:
    """The inverse of `corner_from_pixel`."""
    return points - _HALF


def resize_points(points: Coordinates, scale: Any) -> Coordinates:
    """Points of an image after it is resized by `scale`: x → (x + ½)·s − ½, so that pixel areas map onto each other.

    Args:
        points: (…, 2) pixels, numpy or torch.
        scale: New size by old size, one number or (x, y).

    Returns:
        (…, 2) pixels of the resized image, of the type of `points`.

    Example:
        >>> resize_points(np.array([-0.5, 0.0, 3.5]), 0.5)
        array([-0.5 , -0.25,  1.5 ])
    """
    resized = pixel_from_corner(corner_from_pixel(points) * scale)
    return resized.astype(points.dtype) if isinstance(points, np.ndarray) else resized


def unit_from_pixel(points: Coordinates, size: Any) -> Coordinates:
    """Points as torch's `grid_sample` with align_corners=False counts them: −1 and 1 are the edges of the image.

    Args:
        points: (…, 2) pixels.
        size: Pixels per side, one number or (width, height).
    """
    return 2 * corner_from_pixel(points) / size - 1
