"""Guided completion: where the filter knows how the image moves, find the matches that descriptors alone missed.

Every accepted match predicts where the keypoints around it must be in the other image. A keypoint takes the median of
what its nearest accepted matches predict; among the keypoints close to that place, in both directions, the one with
the closest descriptor is its match. Repeated structure, where the nearest descriptor is the wrong window of a facade,
is no obstacle here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from linglue.matching.assignment import one_to_one
from linglue.matching.distance import LocalMatches, View
from linglue.matching.neighborhood import seed_radius

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CompletionConfig:
    """Constants of the completion; lengths in units of the seed radius R of the respective image."""

    anchors: int = 8  # accepted matches a prediction is the median of
    min_anchors: int = 5  # fewer make no prediction
    reach: float = 2.0  # how far an anchor may be
    tolerance: float = 0.06  # between the predicted place and a keypoint
    max_turn: float = np.radians(40)  # between the match and the local map, where features have orientations
    max_scale_ratio: float = 1.8  # the same for scales
    distance_quantile: float = 0.95  # descriptors may be as far apart as this quantile of the accepted matches …
    distance_slack: float = 1.6  # … times this


def predict(
    points: Array,
    anchors0: Array,
    anchors1: Array,
    maps: Array,
    own: NDArray[np.int64],
    config: CompletionConfig,
    radius: float,
) -> tuple[Array, Array]:
    """Where points (N, 2) of image 0 are in image 1, NaN where too few anchors are near, and their maps (N, 2, 2).

    anchors (K, 2) and maps (K, 2, 2): accepted matches. own (N,): the anchor that a point itself is, or −1; it has no
    say in its own prediction.
    """
    count = min(config.anchors + 1, len(anchors0))
    distance, index = cKDTree(anchors0).query(
        points, k=[*range(1, count + 1)], distance_upper_bound=config.reach * radius
    )
    near = np.isfinite(distance) & (index != own[:, None])  # (N, k)
    index = np.where(np.isfinite(distance), index, 0)
    moved = anchors1[index] + np.einsum("nkij,nkj->nki", maps[index], points[:, None] - anchors0[index])  # (N, k, 2)
    enough = near.sum(1) >= config.min_anchors  # (N,)
    predicted = np.full(points.shape, np.nan)
    predicted[enough] = np.nanmedian(np.where(near[enough, :, None], moved[enough], np.nan), axis=1)
    first = np.take_along_axis(index, near.argmax(1)[:, None], axis=1)[:, 0]  # (N,) the nearest anchor
    return predicted, maps[first]


def _agrees(local: Array, turn: Array | None, growth: Array | None, config: CompletionConfig) -> NDArray[np.bool_]:
    """(E,) bool: candidates turn (radians) and grow (log scale) as the local map (E, 2, 2), where features know it."""
    keep = np.ones(len(local), dtype=bool)
    if turn is not None:
        rotation = np.arctan2(local[:, 1, 0] - local[:, 0, 1], local[:, 0, 0] + local[:, 1, 1])
        keep &= np.abs((turn - rotation + np.pi) % (2 * np.pi) - np.pi) <= config.max_turn
    if growth is not None:
        expected = 0.5 * np.log(np.abs(np.linalg.det(local)) + 1e-12)
        keep &= np.abs(growth - expected) <= np.log(config.max_scale_ratio)
    return keep


def _candidates(predicted: Array, points: Array, tolerance: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All (i, j) with keypoint j within `tolerance` of the place predicted for i."""
    rows = np.flatnonzero(np.isfinite(predicted).all(1))
    found = cKDTree(points).query_ball_point(predicted[rows], tolerance)
    source = np.repeat(rows, [len(f) for f in found])
    return source, np.concatenate([*found, []]).astype(np.int64)


@torch.no_grad()
def complete(
    view0: View, view1: View, x0: Tensor, x1: Tensor, accepted: LocalMatches, config: CompletionConfig | None = None
) -> tuple[Tensor, Tensor]:
    """The accepted matches and those found by their guidance: pairs (K, 2) and scores (K,), best first.

    x0 (N, C), x1 (M, C): descriptors. Accepted matches keep their confidence of at least ½, found ones score below.
    """
    config = config or CompletionConfig()
    if len(accepted.pairs) <= config.min_anchors:
        return accepted.pairs, accepted.confidence
    points0, points1 = _numpy(view0.points), _numpy(view1.points)
    radius0, radius1 = float(seed_radius(view0.size)), float(seed_radius(view1.size))
    pairs, maps = accepted.pairs.cpu().numpy(), _numpy(accepted.maps)
    anchors0, anchors1 = points0[pairs[:, 0]], points1[pairs[:, 1]]
    own0, own1 = (np.full(len(points), -1, dtype=np.int64) for points in (points0, points1))
    own0[pairs[:, 0]] = own1[pairs[:, 1]] = np.arange(len(pairs))
    in1, local1 = predict(points0, anchors0, anchors1, maps, own0, config, radius0)
    in0, local0 = predict(points1, anchors1, anchors0, np.linalg.inv(maps).astype(np.float64), own1, config, radius1)

    i, j = _candidates(in1, points1, config.tolerance * radius1)
    error0 = np.linalg.norm(in0[j] - points0[i], axis=1) / (config.tolerance * radius0)  # (E,), NaN: no prediction
    error1 = np.linalg.norm(in1[i] - points1[j], axis=1) / (config.tolerance * radius1)  # (E,)
    free = (own0[i] < 0) & (own1[j] < 0) & (error0 <= 1)
    i, j, error = i[free], j[free], np.maximum(error0, error1)[free]
    turn = growth = None
    if view0.oris is not None and view1.oris is not None:
        turn = _numpy(view1.oris)[j] - _numpy(view0.oris)[i]
    if view0.scales is not None and view1.scales is not None:
        growth = np.log(_numpy(view1.scales)[j] / _numpy(view0.scales)[i])
    agrees = _agrees(local1[i], turn, growth, config)
    agrees &= _agrees(local0[j], None if turn is None else -turn, None if growth is None else -growth, config)
    i, j, error = i[agrees], j[agrees], error[agrees]

    found = torch.from_numpy(np.stack([i, j], axis=1)).to(accepted.pairs)  # (E, 2)
    distance = (x0[found[:, 0]] - x1[found[:, 1]]).norm(dim=1)  # (E,)
    usual = (x0[accepted.pairs[:, 0]] - x1[accepted.pairs[:, 1]]).norm(dim=1).quantile(config.distance_quantile)
    close = distance <= config.distance_slack * usual
    found, distance = found[close], distance[close]
    score = 0.5 * (1 - torch.from_numpy(error).to(distance)[close].square())
    mutual = _mutually_best(found, distance, len(points0), len(points1))
    found, score = found[mutual], score[mutual]
    order = torch.argsort(score, descending=True, stable=True)
    return torch.cat([accepted.pairs, found[order]]), torch.cat([accepted.confidence, score[order]])


def _mutually_best(pairs: Tensor, distance: Tensor, count0: int, count1: int) -> Tensor:
    """(K,) which candidate pairs are the closest for both their keypoints; equal distances: one of them."""
    best0 = distance.new_full((count0,), torch.inf).scatter_reduce(0, pairs[:, 0], distance, "amin")
    best1 = distance.new_full((count1,), torch.inf).scatter_reduce(0, pairs[:, 1], distance, "amin")
    best = ((distance == best0[pairs[:, 0]]) & (distance == best1[pairs[:, 1]])).nonzero()[:, 0]
    return best[one_to_one(pairs[best], -distance[best])]


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.detach().cpu().double().numpy(), dtype=np.float64)
