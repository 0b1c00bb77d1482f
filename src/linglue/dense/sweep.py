"""Depth of one image by plane sweep: at which of many depths do its neighbours show the same? In torch, any device.

Planes parallel to the image, evenly spaced in inverse depth; windows are compared by their normalised correlation, the
best half of the neighbours counts, since the others may not see the spot. Memory does not grow with the planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from linglue.geometry.camera import Camera, View
from linglue.geometry.pixels import unit_from_pixel
from linglue.io.images import Image
from linglue.types import ImageSize

FEWEST_PLANES = 16
REFINED = 2  # planes to both sides of the best at half the size that are tried at the whole size
_FLAT = 4.0  # variance of grey levels below which a window shows nothing


@dataclass(frozen=True, eq=False)
class DepthMap:
    """Depth of every pixel, and how well the neighbours agree there."""

    depth: NDArray[np.float32]  # (H, W), 0 where unknown
    score: NDArray[np.float32]  # (H, W) correlation, −1 to 1


def plane_depths(view: View, others: Sequence[View], near: float, far: float, most: int) -> NDArray[np.float64]:
    """(D,) depths, the nearest first, about a pixel apart in the neighbour where they are farthest apart.

    Args:
        view: the image whose depth is wanted.
        others: its neighbours.
        near: smallest depth.
        far: largest depth.
        most: planes at most.
    """
    width, height = view.camera.size
    corners = np.array([[0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1], [width / 2, height / 2]])
    shift = 0.0
    for other in others:
        ends = [other.project(view.lift(corners, np.full(len(corners), depth))) for depth in (near, far)]
        seen = (ends[0][1] > 0) & (ends[1][1] > 0)
        if seen.any():
            shift = max(shift, float(np.linalg.norm(ends[0][0][seen] - ends[1][0][seen], axis=1).max()))
    count = int(np.clip(np.ceil(shift) + 1, min(FEWEST_PLANES, most), most))
    return 1 / np.linspace(1 / near, 1 / far, count)


@torch.inference_mode()
def sweep(
    image: Image,
    view: View,
    others: Sequence[tuple[Image, View]],
    depths: NDArray[np.float64],
    window: int = 7,
    device: str = "cpu",
) -> DepthMap:
    """The depth of every pixel of an image.

    Args:
        image: (H, W, 3).
        view: its camera and pose.
        others: its neighbours, images with their views.
        depths: of `plane_depths`.
        window: side of the squares that are compared, odd.
        device: where to compute.

    Returns:
        all planes are tried at half the size, some depths around the best at the whole size; a parabola through three
        scores finds what lies between them.
    """
    grey, sources = _grey(image, device), [(_grey(other, device), place) for other, place in others]
    small, small_view = _halved(grey, view)
    coarse = _Comparison(small, small_view, [_halved(*source) for source in sources], window)
    planes = torch.as_tensor(
        1 / depths[::2].copy(), dtype=torch.float32, device=device
    )  # half as many are a pixel apart
    best = torch.full(small.shape[-2:], -2.0, device=device)
    inverse = torch.zeros_like(best)
    for plane in planes:
        score = coarse.score(plane)
        better = score > best
        best, inverse = torch.where(better, score, best), torch.where(better, plane, inverse)

    fine = _Comparison(grey, view, sources, window)
    start = F.interpolate(inverse[None, None], grey.shape[-2:], mode="nearest")[0, 0]  # (H, W)
    step = float(1 / depths[1] - 1 / depths[0])
    tried = torch.arange(-REFINED, REFINED + 1, device=device) * step
    scores = torch.stack([fine.score((start + offset).clamp(min=1e-9)) for offset in tried])  # (5, H, W)
    index = scores.argmax(0, keepdim=True).clamp(1, len(tried) - 2)  # (1, H, W)
    before, middle, after = (scores.gather(0, index + side)[0] for side in (-1, 0, 1))
    curve = before - 2 * middle + after
    offset = torch.where(curve < -1e-6, 0.5 * (before - after) / curve, torch.zeros_like(middle)).clamp(-1, 1)
    found = start + tried[index[0]] + offset * step
    inside = (found <= 1 / depths[0]) & (found >= 1 / depths[-1])
    known = inside & (fine.variance[0, 0] > _FLAT) & (middle > -1)
    depth = torch.where(known, 1 / found, torch.zeros_like(found))
    return DepthMap(depth.cpu().numpy(), scores.amax(0).cpu().numpy())


class _Comparison:
    """How well the neighbours of an image agree with it at given depths."""

    def __init__(self, grey: Tensor, view: View, others: Sequence[tuple[Tensor, View]], window: int) -> None:
        self._grey, self._window = grey, window
        self._mean = _box(grey, window)
        self.variance = _box(grey * grey, window) - self._mean * self._mean
        self._warps = [_Warp(view, other, picture) for picture, other in others]
        self._counted = (len(self._warps) + 1) // 2

    def score(self, inverse: Tensor) -> Tensor:
        """(H, W) correlation with the better half of the neighbours, at the inverse depth () or (H, W)."""
        found = [
            _correlation(self._grey, self._mean, self.variance, warp.at(1 / inverse), self._window)
            for warp in self._warps
        ]
        return torch.stack(found).topk(self._counted, dim=0).values.mean(0)


class _Warp:
    """A neighbour, as it would look from the reference if depths were as given."""

    def __init__(self, view: View, other: View, grey: Tensor) -> None:
        self._grey, device = grey, grey.device
        pose = other.from_view(view)
        rotated = other.camera.matrix @ pose.rotation @ np.linalg.inv(view.camera.matrix)  # (3, 3) at depth 1
        width, height = view.camera.size
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        pixels = torch.stack([x, y, torch.ones_like(x)], dim=-1).to(device, torch.float32)  # (H, W, 3)
        self._rays = pixels @ torch.as_tensor(rotated.T, dtype=torch.float32, device=device)  # (H, W, 3)
        self._shift = torch.as_tensor(other.camera.matrix @ pose.translation, dtype=torch.float32, device=device)
        self._size = torch.tensor(tuple(other.camera.size), dtype=torch.float32, device=device)

    def at(self, depth: Tensor) -> tuple[Tensor, Tensor]:
        """(1, 1, H, W) grey levels at a depth, () or (H, W), and (H, W) where the neighbour sees it."""
        points = self._rays * depth[..., None] + self._shift
        front = points[..., 2] > 1e-6
        grid = unit_from_pixel(points[..., :2] / points[..., 2:].clamp(min=1e-6), self._size)  # (H, W, 2)
        seen = front & (grid.abs() <= 1).all(-1)
        return F.grid_sample(self._grey, grid[None], padding_mode="border", align_corners=False), seen


def _correlation(grey: Tensor, mean: Tensor, variance: Tensor, warped: tuple[Tensor, Tensor], window: int) -> Tensor:
    """(H, W) normalised correlation of windows, −1 where the neighbour sees nothing."""
    other, seen = warped
    sums = _box(torch.cat([other, other * other, grey * other], dim=1), window)  # (1, 3, H, W)
    other_mean, squares, products = sums[:, :1], sums[:, 1:2], sums[:, 2:]
    other_variance = squares - other_mean * other_mean
    covariance = products - mean * other_mean
    norm = (variance.clamp(min=_FLAT) * other_variance.clamp(min=_FLAT)).sqrt()
    return torch.where(seen, (covariance / norm).clamp(-1, 1)[0, 0], torch.full_like(mean[0, 0], -1.0))


def _box(values: Tensor, window: int) -> Tensor:
    """Means of squares, in two passes; at the border of what is inside."""
    half = window // 2
    rows = F.avg_pool2d(values, (1, window), 1, (0, half), count_include_pad=False)
    return F.avg_pool2d(rows, (window, 1), 1, (half, 0), count_include_pad=False)


def _halved(grey: Tensor, view: View) -> tuple[Tensor, View]:
    """An image of half the size, and its view; an odd last row or column is left out."""
    small = F.avg_pool2d(grey, 2)
    size = ImageSize(small.shape[-1], small.shape[-2])
    whole = Camera(ImageSize(2 * size.width, 2 * size.height), view.camera.matrix)
    return small, View(whole.resized(size), view.cam_from_world)


def _grey(image: Image, device: str) -> Tensor:
    """(1, 1, H, W) about 0, which keeps the digits that variances need."""
    return (torch.as_tensor(image, device=device).float().mean(-1) - 128)[None, None]
