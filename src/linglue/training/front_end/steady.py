"""Where keypoints really are: what a student that has learned before agrees on in mirrored, turned and resized images.

A teacher's positions depend on how it looks at an image: ALIKED's lie beside what they are of, in upright and in
mirrored images alike. A student can only blur what it is told so inconsistently.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.features.linpoint import ASIDE, LinPointNet, detect, to_tensor
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image
from linglue.types import ImageSize

KEYPOINTS = 4096  # of a view
REACH = 3.0  # pixels of the image within which a view's keypoint may be the one looked for
AGREED = 2.0  # pixels from the median of all views: farther ones are other keypoints
ENOUGH = 5  # views that must agree


class Transform(NamedTuple):
    """An image resized, transposed, then mirrored."""

    scale: float = 1.0
    transposed: bool = False
    mirrored: bool = False  # left to right
    flipped: bool = False  # top to bottom


VIEWS = (
    *(Transform(mirrored=x, flipped=y) for x in (False, True) for y in (False, True)),
    Transform(transposed=True),
    *(Transform(scale, mirrored=x, flipped=x) for scale in (0.7, 1.4) for x in (False, True)),
)


def seen_as(image: Image, view: Transform) -> Image:
    """What the student is shown.

    Args:
        image: (H, W, 3).
        view: how.
    """
    if view.scale != 1:
        size = tuple(round(side * view.scale) for side in (image.shape[1], image.shape[0]))
        smooth = cv2.INTER_AREA if view.scale < 1 else cv2.INTER_LINEAR
        image = np.asarray(cv2.resize(image, size, interpolation=smooth), dtype=np.uint8)
    if view.transposed:
        image = image.transpose(1, 0, 2)
    return np.ascontiguousarray(image[:: -1 if view.flipped else 1, :: -1 if view.mirrored else 1])


def back_from(points: NDArray[np.float64], view: Transform, size: ImageSize) -> NDArray[np.float64]:
    """Points (N, 2) of what `seen_as` made, in the image.

    Args:
        points: (N, 2) pixels x, y of the view.
        view: how the image was shown.
        size: of the image.
    """
    width, height = (round(side * view.scale) if view.scale != 1 else side for side in size)
    if view.transposed:
        width, height = height, width
    x = width - 1 - points[:, 0] if view.mirrored else points[:, 0]
    y = height - 1 - points[:, 1] if view.flipped else points[:, 1]
    if view.transposed:
        x, y, width, height = y, x, height, width
    return resize_points(np.stack([x, y], axis=1), np.array([size.width / width, size.height / height]))


def steady(
    net: LinPointNet, image: Image, points: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where most views see each of the keypoints (N, 2), NaN where fewer than ENOUGH do; and the share (N,) that does.

    Args:
        net: for inference.
        image: (H, W, 3).
        points: (N, 2) pixels x, y.
    """
    size = ImageSize(image.shape[1], image.shape[0])
    seen = np.full((len(VIEWS), len(points), 2), np.nan)
    for number, view in enumerate(VIEWS):
        found = back_from(_find(net, seen_as(image, view)), view, size)
        if len(found):
            distance, nearest = cKDTree(found).query(points)
            near = distance <= REACH
            seen[number, near] = found[nearest[near]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of keypoints that no view sees
        seen[np.linalg.norm(seen - np.nanmedian(seen, axis=0), axis=2) > AGREED] = np.nan
        mean = np.nanmean(seen, axis=0)  # (N, 2)
    agreed = np.isfinite(seen[..., 0]).sum(axis=0)  # (N,)
    mean[agreed < ENOUGH] = np.nan
    return mean.astype(np.float32), (agreed / len(VIEWS)).astype(np.float32)


@torch.inference_mode()
def _find(net: LinPointNet, image: Image) -> NDArray[np.float64]:
    maps = net(to_tensor(image).to(memory_format=torch.channels_last))
    keypoints, _ = detect(maps, 0, ImageSize(image.shape[1], image.shape[0]), KEYPOINTS)
    return keypoints.double().numpy() - ASIDE
