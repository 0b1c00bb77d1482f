"""What the student is asked for: heat at the teacher's keypoints, exact positions, descriptors that find each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from linglue.features.linpoint import refine
from linglue.geometry.pixels import unit_from_pixel

SPREAD = 1.0  # pixels: standard deviation of a keypoint's heat
NEAR = 4.0  # pixels: a point that close to the right one is neither right nor wrong
WINDOW = 16  # pixels: side of the windows in which the heat of two crops must look alike


@dataclass(frozen=True)
class LossWeights:
    """How much each loss counts."""

    heat: float = 1.0
    position: float = 0.5
    agree: float = 0.0
    repeat: float = 0.3
    contrast: float = 1.0
    distil: float = 1.0
    trust: float = 0.2
    keep: float = 0.0  # descriptors stay what those of `kept` are, so that matchers trained on them go on working


def heat_target(points: NDArray[np.float32], scores: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(side, side): at every keypoint (N, 2) a Gaussian as high as its score (N,); the largest counts.

    Args:
        points: (N, 2) keypoints of the crop.
        scores: (N,) of the teacher.
        side: of the crop, in pixels.
    """
    target = np.zeros((side, side), dtype=np.float32)
    radius = int(np.ceil(3 * SPREAD))
    step = np.arange(-radius, radius + 1)
    pixel = np.rint(points).astype(np.int64)
    x = pixel[:, 0, None, None] + step[None, None, :]  # (N, 1, 7)
    y = pixel[:, 1, None, None] + step[None, :, None]  # (N, 7, 1)
    square = (x - points[:, 0, None, None]) ** 2 + (y - points[:, 1, None, None]) ** 2  # (N, 7, 7)
    value = scores[:, None, None] * np.exp(-square / (2 * SPREAD**2))
    x, y = np.broadcast_arrays(x, y)
    good = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    np.maximum.at(target, (y[good], x[good]), value[good].astype(np.float32))
    return target


def heat_loss(logits: Tensor, target: Tensor, covered: Tensor, points: int) -> Tensor:
    """Cross-entropy with (B, S, S) soft targets, most where the two differ (quality focal loss), per keypoint.

    Args:
        logits: (B, S, S) of the student.
        target: (B, S, S) of `heat_target`.
        covered: (B, S, S) bool, where the crop shows the image.
        points: number of keypoints, which the sum is divided by.
    """
    error = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    focus = (target - logits.detach().sigmoid()).square()
    return (error * focus * covered).sum() / max(points, 1)


def position_loss(logits: Tensor, image: Tensor, points: Tensor, pixels: Tensor) -> Tensor:
    """Mean distance, capped where it cannot be mended, of refined positions from the (N, 2) true ones.

    Args:
        logits: (B, S, S) of the student.
        image: (N,) which crop of the batch a point is in.
        points: (N, 2) where the keypoints are.
        pixels: (N, 2) whole pixels beside them, where refinement begins.
    """
    if not len(points):
        return logits.sum() * 0
    return F.smooth_l1_loss(refine(logits, image, pixels), points, beta=0.5)


def agree_loss(found: tuple[Tensor, Tensor], one_from_zero: Tensor) -> Tensor:
    """Mean distance, capped, between what both crops say of a place, in pixels of the coarser one.

    The teacher's positions depend on how it looked at the image; what two views of a place agree on does not.

    Args:
        found: (N, 2) refined positions of the same keypoints in both crops.
        one_from_zero: (N, 3, 3) homographies between them.
    """
    zero, one = found
    if not len(zero):
        return zero.sum()
    lifted = torch.einsum("nij,nj->ni", one_from_zero, F.pad(zero, (0, 1), value=1.0))  # (N, 3)
    mapped = lifted[:, :2] / lifted[:, 2:]
    # d mapped / d zero = (H₂ − mapped ⊗ h₃) / w; the root of its determinant is how much larger crop 1 shows the place.
    slope = (one_from_zero[:, :2, :2] - mapped[:, :, None] * one_from_zero[:, 2:, :2]) / lifted[:, 2:, None]
    larger = torch.linalg.det(slope).abs().sqrt().detach().clamp(min=1.0)[:, None]  # (N, 1)
    return F.smooth_l1_loss(mapped / larger, one / larger, beta=0.5)


def repeat_loss(logits0: Tensor, logits1: Tensor, one_from_zero: Tensor, covered: Tensor) -> Tensor:
    """1 − cosine of the heat of two crops (B, S, S) in windows of the first; one_from_zero (B, 3, 3).

    Args:
        logits0: (B, S, S) of the first crops.
        logits1: (B, S, S) of the second.
        one_from_zero: (B, 3, 3) homographies between them.
        covered: (B, S, S) bool, where the first crops show their images.
    """
    side = logits0.shape[-1]
    step = torch.arange(side, dtype=torch.float32)
    y, x = torch.meshgrid(step, step, indexing="ij")
    at = torch.stack([x, y, torch.ones_like(x)], dim=-1)  # (S, S, 3)
    mapped = torch.einsum("bij,yxj->byxi", one_from_zero, at)
    grid = unit_from_pixel(mapped[..., :2] / mapped[..., 2:].clamp(min=1e-6), side)  # (B, S, S, 2)
    seen = covered & (grid.abs() < 1).all(-1) & (mapped[..., 2] > 0)
    heat0 = logits0.sigmoid() * seen
    heat1 = F.grid_sample(logits1.sigmoid()[:, None], grid, align_corners=False)[:, 0] * seen

    def pool(x: Tensor) -> Tensor:
        return F.avg_pool2d(x[:, None], WINDOW, WINDOW // 2)[:, 0]

    cosine = pool(heat0 * heat1) / (pool(heat0.square()) * pool(heat1.square()) + 1e-10).sqrt()
    whole = (pool(seen.float()) > 0.9).float()
    return ((1 - cosine) * whole).sum() / whole.sum().clamp(min=1)


def contrast_loss(zero: Tensor, one: Tensor, truth: Tensor, banned: Tensor, sharpness: Tensor) -> Tensor:
    """InfoNCE: descriptor i of `zero` (M, D) must choose `truth[i]` of `one` (K, D), not what is `banned` (M, K).

    Args:
        zero: (M, D) unit descriptors.
        one: (K, D) unit descriptors to choose from.
        truth: (M,) the right choice.
        banned: (M, K) bool, choices that are neither right nor wrong.
        sharpness: of the softmax, learned.
    """
    logits = (sharpness * zero @ one.T).masked_fill(banned, -torch.inf)
    return F.cross_entropy(logits, truth)


def distil_loss(student: Tensor, teacher: Tensor, sharpness: Tensor) -> Tensor:
    """The student's projected descriptors (M, D) must choose the teacher's of the same keypoint, and lie near it.

    Args:
        student: (M, D) projected into the teacher's space.
        teacher: (M, D) of the same keypoints.
        sharpness: of the softmax, learned.
    """
    logits = sharpness * student @ teacher.T  # (M, M)
    truth = torch.arange(len(student), device=student.device)
    return F.cross_entropy(logits, truth) + 1 - (student * teacher).sum(1).mean()
