"""The local affine filter: around every seed, keep the matches that one linear map explains better than chance would.

The filter of AdaLAM (ECCV 2020) without its refitting step. For each seed many two-point RANSACs run side by side, in
coordinates relative to the seed and in units of the neighborhood's radius. The samples are the pairs of most
distinctive matches in a fixed order, so the result needs no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from linglue.matching.neighborhood import Neighborhoods, Selection, pad_groups, split_by_size

RESIDUALS = 1 << 21  # seeds × hypotheses × matches evaluated at a time


@dataclass(frozen=True)
class FilterConfig:
    """Constants of the filter: AdaLAM's, but for a confidence of 400, which the consensus after it can afford."""

    expansion: float = 4.0  # λ, reach of a neighborhood in units of R
    hypotheses: int = 128  # two-point samples per seed
    competition: int = 256  # matches of a seed, the most distinctive ones, on which its hypotheses are compared
    min_inliers: int = 6  # beside the seed and the sample, which fit by construction
    min_confidence: float = 400.0  # inlier rate over the rate that uniformly random matches would reach
    max_turn: float = math.radians(30)  # of a match relative to its seed, where features have orientations
    max_scale_ratio: float = 1.5  # of a match relative to its seed, where features have scales
    max_stretch: float = 5.0  # of the local map, in any direction


# Without scale and orientation in the features, whose keypoints are placed less exactly, too.
COARSE = FilterConfig(min_confidence=200.0)


@dataclass(frozen=True)
class Shape:
    """How every match (N,) turns and scales: optional evidence beside its position."""

    turn: Tensor | None  # radians, orientation in image 1 minus orientation in image 0
    log_scale: Tensor | None  # logarithm of scale in image 1 over scale in image 0


def sample_pairs(count: int, device: torch.device) -> Tensor:
    """(count, 2) ranks a < b, best first: (0, 1), (0, 2), (1, 2), (0, 3), …"""
    b = torch.arange(1, 2 + math.isqrt(2 * count), device=device).repeat_interleave(
        torch.arange(1, 2 + math.isqrt(2 * count), device=device)
    )[:count]
    a = torch.arange(count, device=device) - b * (b - 1) // 2
    return torch.stack([a, b], dim=1)


def consistent_with_seed(block: Neighborhoods, shape: Shape, config: FilterConfig) -> Tensor:
    """(E,) bool: the match turns and scales like its seed; all True for features without orientation and scale."""
    seed = block.seeds[block.seed]  # (E,)
    keep = torch.ones_like(seed, dtype=torch.bool)
    if shape.turn is not None:
        difference = shape.turn[block.source] - shape.turn[seed]
        keep &= torch.remainder(difference + math.pi, 2 * math.pi).sub(math.pi).abs() <= config.max_turn
    if shape.log_scale is not None:
        keep &= (shape.log_scale[block.source] - shape.log_scale[seed]).abs() <= math.log(config.max_scale_ratio)
    return keep


def fit_linear_maps(x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
    """Maps A with A x_a = y_a, A x_b = y_b: x, y (S, n, 2), pairs (T, 2) → (S, T, 2, 2); NaN or inf if degenerate."""
    xa, xb, ya, yb = x[:, pairs[:, 0]], x[:, pairs[:, 1]], y[:, pairs[:, 0]], y[:, pairs[:, 1]]  # (S, T, 2)
    determinant = xa[..., 0] * xb[..., 1] - xa[..., 1] * xb[..., 0]  # (S, T)
    inverse = torch.stack([xb[..., 1], -xb[..., 0], -xa[..., 1], xa[..., 0]], dim=-1).unflatten(-1, (2, 2))
    return torch.stack([ya, yb], dim=-1) @ inverse / determinant[..., None, None]


def stretch_limits(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest singular value of (..., 2, 2) maps."""
    a, b, c, d = maps.flatten(-2).unbind(-1)
    sum_, difference = torch.hypot(a + d, c - b), torch.hypot(a - d, c + b)
    return (sum_ - difference).abs() / 2, (sum_ + difference) / 2


def _count_inliers(residual: Tensor, valid: Tensor, config: FilterConfig) -> tuple[Tensor, Tensor]:
    """Inliers of every hypothesis and the squared residual up to which they are.

    residual (S, T, n) squared, in units of the radius; valid (S, n). The k closest matches are inliers if there are
    min_confidence times more of them than random matches would put into a circle of that size: r² · confidence ≤ k/n.
    Returns (S, T) counts and (S, T) limits.
    """
    residual = residual.masked_fill(~valid[:, None], torch.inf).nan_to_num(nan=torch.inf)
    ordered = residual.sort(dim=-1).values  # (S, T, n)
    # The two matches of the sample fit exactly whatever they are: they are no evidence.
    count = torch.arange(1, residual.shape[-1] + 1, device=residual.device) - 2  # (n,)
    total = valid.sum(-1)[:, None, None]  # (S, 1, 1)
    good = (ordered * (config.min_confidence * total) <= count) & ordered.isfinite()  # (S, T, n)
    found = (good * count).amax(-1)  # (S, T): the largest k that passes
    limit = ordered.gather(-1, (found + 1).clamp(max=len(count) - 1)[..., None])[..., 0]  # (S, T)
    return found, torch.where(found > 0, limit, -1.0)


def _fit_groups(
    x: Tensor, y: Tensor, valid: Tensor, stretch_unit: float, config: FilterConfig
) -> tuple[Tensor, Tensor]:
    """x, y (S, n, 2) relative to the seed, most distinctive first → (S, n) confidence, zero for outliers, and each
    seed's map (S, 2, 2), the least-squares fit to its inliers."""
    pairs = sample_pairs(config.hypotheses, x.device)
    pairs = pairs[pairs[:, 1] < x.shape[1]]
    maps = fit_linear_maps(x, y, pairs)  # (S, T, 2, 2)
    smallest, largest = stretch_limits(maps * stretch_unit)
    usable = (smallest * config.max_stretch >= 1) & (largest <= config.max_stretch)  # NaN compares False
    usable &= valid[:, pairs[:, 1]]
    # The hypotheses compete on the most distinctive matches, the winner is tested on all.
    few = slice(None, config.competition)
    residual = (torch.einsum("stij,snj->stni", maps, x[:, few]) - y[:, None, few]).square().sum(-1)  # (S, T, ≤ n)
    count, _ = _count_inliers(residual, valid[:, few], config)  # (S, T)
    best = count.masked_fill(~usable, -1).argmax(1)  # (S,)
    rows = torch.arange(len(best), device=best.device)
    winner = maps[rows, best]  # (S, 2, 2)
    residual = (x @ winner.mT - y).square().sum(-1)  # (S, n)
    count, limit = _count_inliers(residual[:, None], valid, config)  # (S, 1)
    accepted = (residual <= limit) & valid & (count >= config.min_inliers) & usable[rows, best][:, None]  # (S, n)
    fit = _refit(x, y, accepted, winner, stretch_unit, config)
    # How well a match fits is judged by the map of all inliers: the winner's own sample fits the winner exactly.
    residual = (x @ fit.mT - y).square().sum(-1).minimum(limit)  # (S, n)
    rate = count / valid.sum(-1, keepdim=True)  # (S, 1)
    # Confidence over its threshold, squashed: ½ for a match that is just accepted, 1 for an exact fit.
    confidence = torch.where(accepted, rate / (rate + residual * config.min_confidence), 0.0)  # (S, n)
    return confidence, fit


def _refit(x: Tensor, y: Tensor, accepted: Tensor, winner: Tensor, stretch_unit: float, config: FilterConfig) -> Tensor:
    """Least-squares maps (S, 2, 2) of the accepted (S, n); the winner's own where inliers in a row leave it open."""
    inlier = x * accepted[..., None]  # (S, n, 2)
    normal = inlier.mT @ x + 1e-6 * torch.eye(2, device=x.device)  # (S, 2, 2)
    fit = torch.linalg.solve(normal, inlier.mT @ y).mT
    smallest, largest = stretch_limits(fit * stretch_unit)
    sound = (smallest * config.max_stretch >= 1) & (largest <= config.max_stretch)
    return torch.where(sound[:, None, None], fit, winner)


@dataclass(frozen=True)
class Filtered:
    """What the filter says of every match of a selection."""

    confidence: Tensor  # (N,) in [0, 1], zero: rejected
    maps: Tensor  # (N, 2, 2) pixels of image 1 per pixel of image 0 around the match; zero where rejected


def filter_matches(selection: Selection, ratio: Tensor, shape: Shape, config: FilterConfig) -> Filtered:
    """Test every match of the selection around every seed; ratio (N,) is its distinctiveness. The best seed counts."""
    confidence = selection.points0.new_zeros(len(selection.points0))
    maps = selection.points0.new_zeros(len(selection.points0), 2, 2)
    stretch_unit = float(selection.reach1 / selection.reach0)  # x and y are in units of their own image's radius
    for block in selection.neighborhoods():
        for seeds, index, valid in _padded_members(block, ratio, shape, config):
            x = (selection.points0[index] - selection.points0[seeds, None]) / selection.reach0  # (S, n, 2)
            y = (selection.matched[index] - selection.matched[seeds, None]) / selection.reach1  # (S, n, 2)
            found, fit = _fit_groups(x, y, valid, stretch_unit, config)  # (S, n), (S, 2, 2)
            # The seed fits its own map.
            member = torch.cat([index, seeds[:, None]], dim=1).flatten()  # (S·(n+1),)
            found = torch.cat([found, found.amax(1, keepdim=True)], dim=1).flatten()
            confidence = confidence.scatter_reduce(0, member, found, "amax")
            best = (found > 0) & (found == confidence[member])
            group = torch.arange(len(seeds), device=member.device).repeat_interleave(index.shape[1] + 1)
            maps[member[best]] = fit[group[best]] * stretch_unit
    return Filtered(confidence, maps)


def _padded_members(
    block: Neighborhoods, ratio: Tensor, shape: Shape, config: FilterConfig
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Seeds (S,) with enough members, their members (S, n) without the seed, most distinctive first, and the mask."""
    keep = consistent_with_seed(block, shape, config) & (block.source != block.seeds[block.seed])
    seed, source = block.seed[keep], block.source[keep]
    order = torch.argsort(ratio[source], descending=True, stable=True)
    order = order[torch.argsort(seed[order], stable=True)]
    seed, source = seed[order], source[order]
    enough = torch.bincount(seed, minlength=len(block.seeds)) >= config.min_inliers + 2  # (S,)
    seeds, kept = block.seeds[enough], enough[seed]
    seed, source = (enough.cumsum(0) - 1)[seed[kept]], source[kept]
    size = torch.bincount(seed, minlength=len(seeds)).clamp(max=config.competition)  # (S,)
    for start, stop in split_by_size(size, RESIDUALS // config.hypotheses):
        part = (seed >= start) & (seed < stop)
        yield seeds[start:stop], *pad_groups(seed[part] - start, source[part], stop - start)
