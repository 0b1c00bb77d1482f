"""One batch of crops as tensors, and the losses of the student on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor, nn

from linglue.features.linpoint import DIM, LinPointNet, Maps, fused, refine, sample
from linglue.training.front_end.crops import Crop
from linglue.training.front_end.losses import (
    NEAR,
    LossWeights,
    agree_loss,
    contrast_loss,
    distil_loss,
    heat_loss,
    heat_target,
    position_loss,
    repeat_loss,
)

APART = 1e5  # pixels added between pairs, so that distances tell points of different pairs apart
RIDGE = 1e-3  # of the first map to the teacher's descriptors, times the mean square of a student's number
CROWDED = 4.0  # pixels: of two keypoints closer than that, none has its heat for itself


@dataclass(frozen=True, eq=False)
class Batch:
    """B pairs of crops; crops 0 to B − 1 are their first images, B to 2B − 1 their second ones."""

    images: Tensor  # (2B, 1, S, S)
    covered: Tensor  # (2B, S, S) bool
    heat: Tensor  # (2B, S, S) wanted
    one_from_zero: Tensor  # (B, 3, 3); NaN where two images make a pair
    lone: Tensor  # (L, 2) keypoints with their heat for themselves
    lone_crop: Tensor  # (L,)
    lone_pixel: Tensor  # (L, 2) whole pixels beside them: the highest heat need not be the nearest pixel
    points: tuple[Tensor, Tensor]  # (K0, 2), (K1, 2) keypoints to describe
    crop: tuple[Tensor, Tensor]  # (K0,), (K1,)
    matches: Tensor  # (M, 2) into points
    match_pixel: tuple[Tensor, Tensor]  # (M, 2) each, like lone_pixel
    taught: tuple[Tensor, Tensor]  # (M, D) the teacher's descriptors of the matches
    keypoints: int  # in all crops


def collate(
    samples: Sequence[tuple[Crop, Crop, NDArray[np.int64]]],
    taught: Sequence[tuple[NDArray[np.float16], NDArray[np.float16]]],
    same: Sequence[bool],
    limit: int,
    rng: np.random.Generator,
) -> Batch:
    """Pairs of crops and their matches; `taught` has the descriptors of both lessons of each, `same` one image.

    Args:
        samples: two crops and their matches, each.
        taught: the teacher's descriptors of both lessons.
        same: whether the two crops are of one image.
        limit: keypoints of a crop that are used.
        rng: chooses them.
    """
    pairs = len(samples)
    crops = [s[0] for s in samples] + [s[1] for s in samples]
    side = crops[0].image.shape[0]
    points: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = ([], [])
    numbers: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = ([], [])
    descriptors: tuple[list[NDArray[np.float16]], list[NDArray[np.float16]]] = ([], [])
    matches, before = [], [0, 0]
    for p, (zero, one, both) in enumerate(samples):
        both = both[rng.permutation(len(both))[:limit]]
        rows = []
        for k, crop in enumerate((zero, one)):
            others = np.setdiff1d(np.arange(len(crop.points)), both[:, k])
            others = others[rng.permutation(len(others))[: max(0, limit - len(both))]]
            chosen = np.concatenate([both[:, k], others])
            points[k].append(crop.points[chosen])
            numbers[k].append(np.full(len(chosen), p + k * pairs))
            descriptors[k].append(taught[p][k][crop.ids[both[:, k]]])
            rows.append(before[k] + np.arange(len(both)))
            before[k] += len(chosen)
        matches.append(np.stack(rows, axis=1))
    lone = [c.points[_lone(c.points)] for c in crops]
    both = np.concatenate(matches)
    match_pixel = [_beside(np.concatenate(points[k])[both[:, k]], rng) for k in (0, 1)]
    return Batch(
        images=torch.from_numpy(np.stack([c.image for c in crops]))[:, None].float() / 255,
        covered=torch.from_numpy(np.stack([c.covered for c in crops])),
        heat=torch.from_numpy(np.stack([heat_target(c.points, c.scores, side) for c in crops])),
        one_from_zero=torch.from_numpy(_one_from_zero(samples, same)).float(),
        lone=torch.from_numpy(np.concatenate(lone)),
        lone_crop=torch.from_numpy(np.repeat(np.arange(2 * pairs), [len(found) for found in lone])),
        lone_pixel=torch.from_numpy(_beside(np.concatenate(lone), rng)),
        points=(torch.from_numpy(np.concatenate(points[0])), torch.from_numpy(np.concatenate(points[1]))),
        crop=(torch.from_numpy(np.concatenate(numbers[0])), torch.from_numpy(np.concatenate(numbers[1]))),
        matches=torch.from_numpy(both),
        match_pixel=(torch.from_numpy(match_pixel[0]), torch.from_numpy(match_pixel[1])),
        taught=(
            torch.from_numpy(np.concatenate(descriptors[0])).float(),
            torch.from_numpy(np.concatenate(descriptors[1])).float(),
        ),
        keypoints=sum(len(c.points) for c in crops),
    )


def _one_from_zero(
    samples: Sequence[tuple[Crop, Crop, NDArray[np.int64]]], same: Sequence[bool]
) -> NDArray[np.float64]:
    """(P, 3, 3) homographies from the first crop of a pair to the second, NaN where they are of two images."""
    return np.stack(
        [
            one.crop_from_image @ np.linalg.inv(zero.crop_from_image) if is_same else np.full((3, 3), np.nan)
            for (zero, one, _), is_same in zip(samples, same, strict=True)
        ]
    )


def _beside(points: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """(N, 2) the nearest pixel of each point (N, 2), or one of its neighbours."""
    return np.rint(points).astype(np.int64) + rng.integers(-1, 2, points.shape)


def _lone(points: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(N,) which points have no other one near."""
    if len(points) < 2:
        return np.ones(len(points), dtype=np.bool_)
    return np.asarray(cKDTree(points).query(points, k=2)[0][:, 1] > CROWDED)


class FrontEndObjective(nn.Module):
    """The student with what it needs only while it learns: the way to the teacher's descriptors, two sharpnesses.

    Args:
        net: the student.
        weights: of the losses.
        taught_dim: length of the teacher's descriptors.
        bfloat16: maps are computed by autocast.
        kept: whose descriptors the student's are to stay like; None: nobody's.
    """

    def __init__(
        self,
        net: LinPointNet,
        weights: LossWeights,
        taught_dim: int,
        bfloat16: bool = False,
        kept: LinPointNet | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.weights = weights
        self._autocast = bfloat16
        # In a tuple, so that it is neither trained nor part of a checkpoint.
        self._kept = (fused(kept).requires_grad_(False),) if kept is not None else ()
        self.to_teacher = nn.Linear(DIM, taught_dim)
        self.log_sharpness = nn.Parameter(torch.full((2,), float(np.log(15.0))))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The losses by name, weighted."""
        w = self.weights
        maps = self._maps(self.net, batch)
        pairs = len(batch.images) // 2
        described = [self.net.describe(maps, batch.crop[k], batch.points[k]) for k in (0, 1)]  # (K, 64) each
        sharpness = self.log_sharpness.exp().clamp(max=60)
        losses = {
            "heat": w.heat * heat_loss(maps.heat, batch.heat, batch.covered, batch.keypoints),
            "position": w.position * position_loss(maps.heat, batch.lone_crop, batch.lone, batch.lone_pixel),
        }
        known = ~batch.one_from_zero.isnan().any(dim=(1, 2))
        if known.any():
            zero, one = maps.heat[:pairs][known], maps.heat[pairs:][known]
            losses["repeat"] = w.repeat * repeat_loss(
                zero, one, batch.one_from_zero[known], batch.covered[:pairs][known]
            )
        if w.agree:
            crops = [batch.crop[k][batch.matches[:, k]] for k in (0, 1)]  # (M,) each
            exact = known[crops[0]]
            at0, at1 = (refine(maps.heat, crops[k][exact], batch.match_pixel[k][exact]) for k in (0, 1))
            losses["agree"] = w.agree * agree_loss((at0, at1), batch.one_from_zero[crops[0][exact]])
        contrast, trust = [], []
        for a, b in ((0, 1), (1, 0)):
            mine, theirs = batch.matches[:, a], batch.matches[:, b]  # (M,)
            apart = _distances(batch, b, theirs)  # (M, K)
            banned = apart < NEAR
            banned[torch.arange(len(theirs)), theirs] = False
            contrast.append(contrast_loss(described[a][mine], described[b], theirs, banned, sharpness[0]))
            with torch.no_grad():
                similar = (described[a][mine] @ described[b].T).masked_fill(apart > APART / 2, -2)  # (M, K)
                right = apart.gather(1, similar.argmax(1, keepdim=True))[:, 0] < NEAR  # (M,)
            logit = sample(maps.trust[..., None], batch.crop[a][mine], batch.points[a][mine], 8)[:, 0]
            trust.append(F.binary_cross_entropy_with_logits(logit, right.float()))
        losses["contrast"] = w.contrast * (contrast[0] + contrast[1]) / 2
        losses["trust"] = w.trust * (trust[0] + trust[1]) / 2
        distilled = [
            distil_loss(
                F.normalize(self.to_teacher(described[k][batch.matches[:, k]]), dim=1), batch.taught[k], sharpness[1]
            )
            for k in (0, 1)
        ]
        losses["distil"] = w.distil * (distilled[0] + distilled[1]) / 2
        for kept in self._kept:
            with torch.no_grad():
                old = self._maps(kept, batch)
                wanted = [kept.describe(old, batch.crop[k], batch.points[k]) for k in (0, 1)]  # (K, 64) each
            moved = [1 - (described[k] * wanted[k]).sum(1).mean() for k in (0, 1)]
            losses["keep"] = w.keep * (moved[0] + moved[1]) / 2
        return losses

    @torch.no_grad()
    def fit_teacher(self, batches: Sequence[Batch]) -> None:
        """Begin with the best linear map to the teacher's descriptors, for a student that has learned before.

        Args:
            batches: to fit it by.
        """
        mine, taught = [], []
        for batch in batches:
            maps = self._maps(self.net.eval(), batch)
            for k in (0, 1):
                rows = batch.matches[:, k]
                mine.append(self.net.describe(maps, batch.crop[k][rows], batch.points[k][rows]))
                taught.append(batch.taught[k])
        x = F.pad(torch.cat(mine), (0, 1), value=1.0)  # (R, 65)
        ridge = RIDGE * len(x) / DIM * torch.eye(DIM + 1)
        found = torch.linalg.solve(x.T @ x + ridge, x.T @ torch.cat(taught))  # (65, D)
        self.to_teacher.weight.copy_(found[:-1].T)
        self.to_teacher.bias.copy_(found[-1])

    def _maps(self, net: LinPointNet, batch: Batch) -> Maps:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            maps = net(batch.images)
        return Maps(*(values.float() for values in maps))


def _distances(batch: Batch, k: int, chosen: Tensor) -> Tensor:
    """(M, K) pixels from the `chosen` (M,) points of side k to all of them; huge between different pairs."""
    pair = batch.crop[k] % (len(batch.images) // 2)
    apart = torch.cat([batch.points[k], (pair * APART)[:, None]], dim=1)  # (K, 3)
    return torch.cdist(apart[chosen], apart, compute_mode="donot_use_mm_for_euclid_dist")
