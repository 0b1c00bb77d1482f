"""Two synthetic views with known matches: points under a smooth map, noisy descriptors, and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.nearest import Nearest
from linglue.matching.neighborhood import Keypoints

SIZE = torch.tensor([640.0, 480.0])
AFFINE = torch.tensor([[0.8, -0.2], [0.25, 0.65]])  # keeps all points within the image
Warp = Callable[[Tensor], Tensor]


def affine(points: Tensor) -> Tensor:
    return (points - SIZE / 2) @ AFFINE.T + SIZE / 2


def bent(points: Tensor) -> Tensor:
    """A smooth map that no single affine map explains."""
    x, y = ((points - SIZE / 2) / 320).unbind(-1)
    depth = 1 + 0.3 * x + 0.1 * y
    return torch.stack([x + 0.03 * torch.sin(4 * y), y + 0.03 * torch.sin(5 * x)], -1) / depth[:, None] * 280 + SIZE / 2


@dataclass(frozen=True)
class Scene:
    view0: Keypoints
    view1: Keypoints
    x0: Tensor  # (N, D) unit descriptors
    x1: Tensor
    truth: Tensor  # (N,) index in image 1, −1 for outliers

    @property
    def views(self) -> tuple[Keypoints, Keypoints]:
        return self.view0, self.view1

    def bare(self) -> Scene:
        """The same features without scales and orientations."""
        return replace(self, view0=_bare(self.view0), view1=_bare(self.view1))

    def permuted(self, order0: Tensor, order1: Tensor) -> Scene:
        """Keypoint k is the old order[k]."""
        back1 = torch.empty_like(order1)
        back1[order1] = torch.arange(len(order1))
        truth = self.truth[order0]
        return Scene(
            _pick(self.view0, order0),
            _pick(self.view1, order1),
            self.x0[order0],
            self.x1[order1],
            torch.where(truth >= 0, back1[truth.clamp(min=0)], -1),
        )

    def precision_recall(self, pairs: Tensor) -> tuple[float, float]:
        correct = (self.truth[pairs[:, 0]] == pairs[:, 1]).sum().item()
        return correct / max(1, len(pairs)), correct / max(1, int((self.truth >= 0).sum()))


def _bare(view: Keypoints) -> Keypoints:
    return Keypoints(view.points, view.size)


def _pick(view: Keypoints, order: Tensor) -> Keypoints:
    scales, oris = (None if v is None else v[order] for v in (view.scales, view.oris))
    return Keypoints(view.points[order], view.size, scales, oris)


def make_scene(
    inliers: int = 300, outliers: int = 300, warp: Warp = affine, noise: float = 0.5, dim: int = 32, seed: int = 0
) -> Scene:
    """`inliers` true matches and in each image `outliers` more keypoints; all in random order."""
    random = torch.Generator().manual_seed(seed)
    count = inliers + outliers
    points0, points1 = (torch.rand(count, 2, generator=random) * SIZE for _ in range(2))
    points1[:inliers] = warp(points0[:inliers]) + noise * torch.randn(inliers, 2, generator=random)
    ahead = (
        warp(points0[:inliers] + torch.tensor([1.0, 0.0])) - warp(points0[:inliers] - torch.tensor([1.0, 0.0]))
    ) / 2
    oris0, oris1 = (torch.rand(count, generator=random) * 6.28 for _ in range(2))
    oris1[:inliers] = torch.remainder(oris0[:inliers] + torch.atan2(ahead[:, 1], ahead[:, 0]), 2 * torch.pi)
    scales0, scales1 = (4 * torch.rand(count, generator=random).exp() for _ in range(2))
    scales1[:inliers] = scales0[:inliers] * ahead.norm(dim=1)
    x0, x1 = (torch.randn(count, dim, generator=random) for _ in range(2))
    x1[:inliers] = x0[:inliers] + 0.3 * torch.randn(inliers, dim, generator=random)
    scene = Scene(
        Keypoints(points0, SIZE, scales0, oris0),
        Keypoints(points1, SIZE, scales1, oris1),
        F.normalize(x0, dim=1),
        F.normalize(x1, dim=1),
        torch.where(torch.arange(count) < inliers, torch.arange(count), -1),
    )
    return scene.permuted(torch.randperm(count, generator=random), torch.randperm(count, generator=random))


def brute_force(x: Tensor, y: Tensor) -> Nearest:
    """Nearest neighbours of x in y by all distances."""
    value, index = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist").topk(
        min(2, len(y)), dim=1, largest=False
    )
    ratio = (value[:, -1] + 1e-6) / (value[:, 0] + 1e-6)
    return Nearest(index[:, 0], value[:, 0].float(), ratio.float())


def sorted_pairs(pairs: Tensor) -> list[tuple[int, int]]:
    return sorted(map(tuple, pairs.tolist()))
