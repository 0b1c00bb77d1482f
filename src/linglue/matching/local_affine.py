"""The local affine filter: around every seed, keep the matches that one linear map explains better than chance would.

The filter of AdaLAM (ECCV 2020) without its refitting step. For each seed many two-point RANSACs run side by side, in
coordinates relative to the seed and in units of the neighborhood's radius. The samples are the pairs of most
distinctive matches in a fixed order, so the result needs no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linglue.matching.nearest import Nearest
from linglue.matching.neighborhood import Keypoints, Neighborhoods, Selection, pad_groups, select, split_by_size

RESIDUALS = 1 << 18  # seeds × hypotheses × matches evaluated at a time: they stay in the cache


@dataclass(frozen=True)
class FilterConfig:
    """Constants of the filter: AdaLAM's, but for a confidence of 400, which the consensus after it can afford."""

    expansion: float = 4.0  # λ, reach of a neighborhood in units of R
    hypotheses: int = 128  # two-point samples per seed
    competition: int = 256  # matches of a seed, the most distinctive ones, on which its hypotheses are compared
    min_inliers: int = 6  # beside the seed and the sample, which fit by construction
    min_confidence: float = 400.0  # inlier rate over the rate that uniformly random matches would reach …
    min_confidence_bare: float = 200.0  # … where features lack scale or orientation: those are placed less exactly
    max_rotation: float = math.radians(30)  # of a match relative to its seed, where features have orientations
    max_scale_ratio: float = 1.5  # of a match relative to its seed, where features have scales
    max_stretch: float = 5.0  # of the local map, in any direction
    both_ways: bool = True  # also from image 1 to image 0: more matches, and the order of the images does not count

    @classmethod
    def paper(cls) -> FilterConfig:
        """The paper's: neighborhoods of 2 R and AdaLAM's confidence whatever the features, from image 0 to image 1."""
        return cls(expansion=2.0, min_confidence=200.0, both_ways=False)

    def for_features(self, shaped: bool) -> FilterConfig:
        """The constants that hold for features with (`shaped`) or without scale and orientation."""
        return self if shaped else replace(self, min_confidence=self.min_confidence_bare)


@dataclass(frozen=True)
class LocalMatches:
    """One-to-one matches and how the image moves around each."""

    pairs: Tensor  # (K, 2) indices
    confidence: Tensor  # (K,) in [0, 1]
    maps: Tensor  # (K, 2, 2) pixels of image 1 per pixel of image 0


@dataclass(frozen=True)
class Shape:
    """How every match (N,) rotates and scales: optional evidence beside its position."""

    rotation: Tensor | None  # radians, orientation in image 1 minus orientation in image 0
    log_scale: Tensor | None  # logarithm of scale in image 1 over scale in image 0


def sample_pairs(count: int, device: torch.device) -> Tensor:
    """(count, 2) ranks a < b, best first: (0, 1), (0, 2), (1, 2), (0, 3), …"""
    b = torch.arange(1, 2 + math.isqrt(2 * count), device=device).repeat_interleave(
        torch.arange(1, 2 + math.isqrt(2 * count), device=device)
    )[:count]
    a = torch.arange(count, device=device) - b * (b - 1) // 2
    return torch.stack([a, b], dim=1)


def consistent_with_seed(block: Neighborhoods, shape: Shape, config: FilterConfig) -> Tensor:
    """(E,) bool: the match rotates and scales like its seed; all True for features without orientation and scale.

    Args:
        block: matches and their seeds.
        shape: scale and rotation of every match, where known.
        config: how far they may differ.
    """
    seed = block.seeds[block.seed]  # (E,)
    keep = torch.ones_like(seed, dtype=torch.bool)
    if shape.rotation is not None:
        difference = shape.rotation[block.source] - shape.rotation[seed]
        keep &= torch.remainder(difference + math.pi, 2 * math.pi).sub(math.pi).abs() <= config.max_rotation
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


def _sort(values: Tensor) -> Tensor:
    """Values in ascending order along the last axis, NaN last, in place on a CPU: numpy sorts rows 15 times faster."""
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    values.numpy().sort(axis=-1)
    return values


def _count_inliers(residual: Tensor, total: Tensor, config: FilterConfig) -> tuple[Tensor, Tensor]:
    """Inliers of every hypothesis, and the squared residuals in order, (S, T) and (S, T, n).

    residual (S, T, n) squared, in units of the radius, infinite for padding, overwritten; total (S,) matches. The k
    closest matches are inliers if there are min_confidence times more of them than random matches would put into a
    circle of that size: r² · confidence ≤ k/n.
    """
    ordered = _sort(residual)
    # The two matches of the sample fit exactly whatever they are: they are no evidence.
    count = torch.arange(1, residual.shape[-1] + 1, device=residual.device).to(residual) - 2  # (n,)
    good = ordered * (config.min_confidence * total[:, None, None]) <= count  # (S, T, n); NaN compares False
    return torch.where(good, count, 0.0).amax(-1).long(), ordered  # the largest k that passes


def _residuals(maps: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """|A x − y|² of maps (S, T, 2, 2) and points (S, n, 2) → (S, T, n)."""
    points = torch.cat([x, y], dim=-1).mT  # (S, 4, n)
    minus, zero = maps.new_full(maps.shape[:2], -1.0), maps.new_zeros(maps.shape[:2])
    square = torch.bmm(torch.stack([maps[..., 0, 0], maps[..., 0, 1], minus, zero], dim=-1), points).square_()
    other = torch.bmm(torch.stack([maps[..., 1, 0], maps[..., 1, 1], zero, minus], dim=-1), points)
    return square.addcmul_(other, other)


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
    far = torch.where(valid[..., None], y, 1e9)  # (S, n, 2): padding is no inlier
    few, total = slice(None, config.competition), valid.sum(-1)  # (S,)
    count, _ = _count_inliers(_residuals(maps, x[:, few], far[:, few]), valid[:, few].sum(-1), config)  # (S, T)
    best = count.masked_fill(~usable, -1).argmax(1)  # (S,)
    rows = torch.arange(len(best), device=best.device)
    winner = maps[rows, best]  # (S, 2, 2)
    residual = (x @ winner.mT - far).square().sum(-1)  # (S, n)
    count, ordered = _count_inliers(residual[:, None].clone(), total, config)  # (S, 1), (S, 1, n)
    limit = ordered[:, 0].gather(1, (count + 1).clamp(max=ordered.shape[-1] - 1))  # (S, 1)
    enough = (count >= config.min_inliers) & usable[rows, best][:, None]  # (S, 1)
    accepted = (residual <= limit) & valid & enough  # (S, n)
    fit = _refit(x, y, accepted, winner, stretch_unit, config)
    # How well a match fits is judged by the map of all inliers: the winner's own sample fits the winner exactly.
    residual = (x @ fit.mT - y).square().sum(-1).minimum(limit)  # (S, n)
    rate = count / total[:, None]  # (S, 1)
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
    """Test every match of the selection around every seed; ratio (N,) is its distinctiveness. The best seed counts.

    Args:
        selection: seeds and their matches.
        ratio: (N,) distinctiveness.
        shape: scale and rotation of every match, where known.
        config: constants.
    """
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
    count, by_size = torch.bincount(seed, minlength=len(seeds)).sort(stable=True)  # (S,): similar sizes together
    rank = torch.empty_like(by_size).scatter_(0, by_size, torch.arange(len(seeds), device=seed.device))  # (S,)
    order = torch.argsort(rank[seed], stable=True)
    seeds, seed, source = seeds[by_size], rank[seed][order], source[order]
    ends = [0, *count.cumsum(0).tolist()]
    for start, stop in split_by_size(count.clamp(max=config.competition), RESIDUALS // config.hypotheses):
        part = slice(ends[start], ends[stop])
        yield seeds[start:stop], *pad_groups(seed[part] - start, source[part], stop - start)


def one_to_one(pairs: Tensor, scores: Tensor) -> Tensor:
    """Indices of a one-to-one subset of candidate pairs (K, 2), chosen greedily by score, best first.

    Equal scores are decided by the pair's own indices, so neither the order of the candidates nor which image comes
    first decides.
    """
    if len(pairs) == 0:
        return torch.zeros(0, dtype=torch.int64, device=pairs.device)
    order = torch.argsort(pairs.sum(1), stable=True)
    order = order[torch.argsort(scores[order], descending=True, stable=True)]
    i, j = pairs[order].unbind(1)  # (K,) best first
    rank = torch.arange(len(order), device=order.device)
    chosen = []
    while len(rank):  # whoever is the best left for both keypoints is chosen, and rules out all others of theirs
        best0 = rank.new_full((int(i.max()) + 1,), len(order)).scatter_reduce_(0, i, rank, "amin")
        best1 = rank.new_full((int(j.max()) + 1,), len(order)).scatter_reduce_(0, j, rank, "amin")
        first = (best0[i] == rank) & (best1[j] == rank)
        chosen.append(rank[first])
        taken0, taken1 = torch.zeros_like(best0, dtype=torch.bool), torch.zeros_like(best1, dtype=torch.bool)
        taken0[i[first]] = taken1[j[first]] = True
        left = ~(taken0[i] | taken1[j])
        i, j, rank = i[left], j[left], rank[left]
    return order[torch.cat(chosen).sort().values]


def _shape(view0: Keypoints, view1: Keypoints, index: Tensor) -> Shape:
    """How the matches (i, index[i]) rotate and scale."""
    rotation = log_scale = None
    if view0.oris is not None and view1.oris is not None:
        rotation = view1.oris[index] - view0.oris
    if view0.scales is not None and view1.scales is not None:
        log_scale = (view1.scales[index] / view0.scales).log()
    return Shape(rotation, log_scale)


def _one_way(
    view0: Keypoints, view1: Keypoints, nearest0: Nearest, nearest1: Nearest, config: FilterConfig
) -> Filtered:
    """The filter's word on the nearest-neighbour matches from image 0 to image 1."""
    selection = select(view0, view1, nearest0, nearest1, config.expansion)
    return filter_matches(selection, nearest0.ratio, _shape(view0, view1, nearest0.index), config)


@torch.no_grad()
def filtered_matches(
    view0: Keypoints, view1: Keypoints, nearest0: Nearest, nearest1: Nearest, config: FilterConfig
) -> LocalMatches:
    """One-to-one pairs that the local affine filter accepts, best first.

    With `both_ways` the filter runs from image 0 to image 1 and back, so the result does not depend on which image
    comes first, and a keypoint whose nearest neighbour is wrong may still be found from the other side.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        nearest0: of every keypoint of image 0, in image 1.
        nearest1: the other way round.
        config: constants.
    """
    if len(view0.points) == 0 or len(view1.points) == 0:
        empty = view0.points.new_zeros(0)
        return LocalMatches(torch.zeros(0, 2, dtype=torch.int64, device=empty.device), empty, empty.reshape(0, 2, 2))
    config = config.for_features(view0.shaped and view1.shaped)
    forward = _one_way(view0, view1, nearest0, nearest1, config)
    source = forward.confidence.nonzero()[:, 0]  # (k,)
    pairs = torch.stack([source, nearest0.index[source]], dim=1)  # (k, 2)
    confidence, maps = forward.confidence[source], forward.maps[source]
    if config.both_ways:
        backward = _one_way(view1, view0, nearest1, nearest0, config)
        target = backward.confidence.nonzero()[:, 0]
        pairs = torch.cat([pairs, torch.stack([nearest1.index[target], target], dim=1)])
        confidence = torch.cat([confidence, backward.confidence[target]])
        maps = torch.cat([maps, torch.linalg.inv(backward.maps[target])])
    chosen = one_to_one(pairs, confidence)
    return LocalMatches(pairs[chosen], confidence[chosen], maps[chosen])
