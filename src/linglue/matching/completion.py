"""Guided completion: where the filter knows how the image moves, drop outliers and find what descriptors missed.

Every accepted match predicts where the keypoints around it must be in the other image; a keypoint takes the median of
what its nearest accepted matches say. An accepted match that is elsewhere is dropped. A keypoint without a match takes,
among the keypoints close to the predicted position in both directions, the one with the closest descriptor: repeated
structure, where the nearest descriptor of all is the wrong window of a facade, is no obstacle here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from linglue.matching.local_affine import LocalMatches, one_to_one
from linglue.matching.neighborhood import Keypoints, seed_radius

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CompletionConfig:
    """Constants of the completion; lengths in units of the seed radius R of the respective image."""

    anchors: int = 8  # accepted matches a prediction is the median of
    min_anchors: int = 5  # fewer make no prediction
    reach: float = 2.0  # how far an anchor may be
    outlier: float = 0.15  # an accepted match further from its predicted position is dropped …
    outlier_bare: float = 0.25  # … where features lack scale or orientation: those are placed less exactly
    tolerance: float = 0.06  # between the predicted position and the keypoint of a new match …
    tolerance_bare: float = 0.1  # … where features lack scale or orientation
    diameters: float = 1.0  # the same in diameters of the keypoints, where features have scales
    max_rotation: float = np.radians(40)  # between a new match and the local map, where features have orientations
    max_scale_ratio: float = 1.8  # the same for scales
    distance_quantile: float = 0.95  # descriptors may be as far apart as this quantile of the accepted matches …
    distance_slack: float = 1.6  # … times this

    def for_features(self, shaped: bool) -> CompletionConfig:
        """The constants that hold for features with (`shaped`) or without scale and orientation."""
        return self if shaped else replace(self, outlier=self.outlier_bare, tolerance=self.tolerance_bare)


@dataclass(frozen=True)
class Guide:
    """For every keypoint of both images: the position in the other image, in units of its R, and the map around it."""

    points0: Array  # (N, 2) the keypoints themselves, in units of R
    points1: Array  # (M, 2)
    position1: Array  # (N, 2) where those of image 0 are in image 1; NaN where too few anchors are near
    position0: Array  # (M, 2)
    map1: Array  # (N, 2, 2) from image 0 to image 1, per pixel
    map0: Array  # (M, 2, 2) and back
    taken0: NDArray[np.bool_]  # (N,) keypoints of accepted matches
    taken1: NDArray[np.bool_]  # (M,)

    def error(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Array:
        """(E,) how far pairs (i, j) are from the prediction, the larger of both directions; NaN without one."""
        error1 = np.linalg.norm(self.position1[i] - self.points1[j], axis=1)
        error0 = np.linalg.norm(self.position0[j] - self.points0[i], axis=1)
        return np.maximum(error0, error1)


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.detach().cpu().double().numpy(), dtype=np.float64)


def predict(
    points: Array, anchors0: Array, anchors1: Array, maps: Array, own: NDArray[np.int64], config: CompletionConfig
) -> tuple[Array, Array]:
    """Where points (N, 2) of one image are in the other, NaN where too few anchors are near, and the maps (N, 2, 2).

    All lengths in units of R.

    Args:
        points: (N, 2) keypoints of one image.
        anchors0: (K, 2) accepted matches in that image.
        anchors1: (K, 2) the same in the other.
        maps: (K, 2, 2) the motion around each.
        own: (N,) the anchor that a point itself is, or −1; it has no say in its own prediction.
        config: how many anchors, and how near.
    """
    count = min(config.anchors + 1, len(anchors0))
    distance, index = cKDTree(anchors0).query(points, k=[*range(1, count + 1)], distance_upper_bound=config.reach)
    near = np.isfinite(distance) & (index != own[:, None])  # (N, k)
    index = np.where(np.isfinite(distance), index, 0)
    moved = anchors1[index] + np.einsum("nkij,nkj->nki", maps[index], points[:, None] - anchors0[index])  # (N, k, 2)
    enough = near.sum(1) >= config.min_anchors  # (N,)
    position = np.full(points.shape, np.nan)
    position[enough] = _median(moved[enough], near[enough])
    nearest = np.take_along_axis(index, near.argmax(1)[:, None], axis=1)[:, 0]  # (N,)
    return position, maps[nearest]


def _median(values: Array, valid: NDArray[np.bool_]) -> Array:
    """Medians (N, 2) of the valid ones, at least one each, of values (N, k, 2); faster than numpy's for NaN."""
    ordered = np.sort(np.where(valid[:, :, None], values, np.inf), axis=1)
    middle = valid.sum(1)[:, None, None]  # (N, 1, 1)
    low, high = (np.take_along_axis(ordered, index, axis=1)[:, 0] for index in ((middle - 1) // 2, middle // 2))
    return (low + high) / 2


def make_guide(view0: Keypoints, view1: Keypoints, accepted: LocalMatches, config: CompletionConfig) -> Guide:
    """What the accepted matches, at least one, say about all keypoints.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        accepted: matches, at least one.
        config: constants for these features.
    """
    radius0, radius1 = float(seed_radius(view0.size)), float(seed_radius(view1.size))
    points0, points1 = _numpy(view0.points) / radius0, _numpy(view1.points) / radius1
    pairs, maps = accepted.pairs.cpu().numpy(), _numpy(accepted.maps)
    back = np.asarray(np.linalg.inv(maps), dtype=np.float64)
    own0, own1 = np.full(len(points0), -1, dtype=np.int64), np.full(len(points1), -1, dtype=np.int64)
    own0[pairs[:, 0]] = own1[pairs[:, 1]] = np.arange(len(pairs))
    anchors0, anchors1 = points0[pairs[:, 0]], points1[pairs[:, 1]]
    unit = radius0 / radius1  # maps are per pixel, points here in units of R
    position1, map1 = predict(points0, anchors0, anchors1, maps * unit, own0, config)
    position0, map0 = predict(points1, anchors1, anchors0, back / unit, own1, config)
    return Guide(points0, points1, position1, position0, map1 / unit, map0 * unit, own0 >= 0, own1 >= 0)


def drop_outliers(view0: Keypoints, view1: Keypoints, accepted: LocalMatches, config: CompletionConfig) -> LocalMatches:
    """The accepted matches without those that are not where their neighbours say; lonely ones stay.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        accepted: matches of the filter.
        config: constants for these features.
    """
    if len(accepted.pairs) == 0:
        return accepted
    i, j = accepted.pairs.cpu().numpy().T
    outlier = make_guide(view0, view1, accepted, config).error(i, j) > config.outlier  # NaN compares False
    keep = torch.from_numpy(~outlier).to(accepted.pairs.device)
    return LocalMatches(accepted.pairs[keep], accepted.confidence[keep], accepted.maps[keep])


def _agrees(
    local: Array, rotation: Array | None, log_scale: Array | None, config: CompletionConfig
) -> NDArray[np.bool_]:
    """(E,) bool: candidates rotate (radians) and scale (logarithm) as the local map (E, 2, 2), where known."""
    keep = np.ones(len(local), dtype=bool)
    if rotation is not None:
        expected = np.arctan2(local[:, 1, 0] - local[:, 0, 1], local[:, 0, 0] + local[:, 1, 1])
        keep &= np.abs((rotation - expected + np.pi) % (2 * np.pi) - np.pi) <= config.max_rotation
    if log_scale is not None:
        expected = 0.5 * np.log(np.abs(np.linalg.det(local)) + 1e-12)
        keep &= np.abs(log_scale - expected) <= np.log(config.max_scale_ratio)
    return keep


def _candidates(
    view0: Keypoints, view1: Keypoints, guide: Guide, config: CompletionConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All (i, j) of unmatched keypoints that are at each other's predicted position, rotated and scaled accordingly."""
    rows = np.flatnonzero(np.isfinite(guide.position1).all(1) & ~guide.taken0)
    found = cKDTree(guide.points1).query_ball_point(guide.position1[rows], config.tolerance)
    i = np.repeat(rows, [len(f) for f in found])
    j = np.concatenate([*found, []]).astype(np.int64)
    limit: float | Array = config.tolerance
    if view0.scales is not None and view1.scales is not None:
        diameter0 = _numpy(view0.scales)[i] / float(seed_radius(view0.size))
        diameter1 = _numpy(view1.scales)[j] / float(seed_radius(view1.size))
        limit = np.minimum(limit, config.diameters * (diameter0 + diameter1) / 2)
    keep = ~guide.taken1[j] & (guide.error(i, j) <= limit)
    i, j = i[keep], j[keep]
    rotation = log_scale = None
    if view0.oris is not None and view1.oris is not None:
        rotation = _numpy(view1.oris)[j] - _numpy(view0.oris)[i]
    if view0.scales is not None and view1.scales is not None:
        log_scale = np.log(_numpy(view1.scales)[j] / _numpy(view0.scales)[i])
    keep = _agrees(guide.map1[i], rotation, log_scale, config)
    rotation, log_scale = (None if value is None else -value for value in (rotation, log_scale))
    keep &= _agrees(guide.map0[j], rotation, log_scale, config)
    return i[keep], j[keep]


@torch.no_grad()
def complete(
    view0: Keypoints, view1: Keypoints, x0: Tensor, x1: Tensor, accepted: LocalMatches, config: CompletionConfig
) -> tuple[Tensor, Tensor]:
    """The accepted matches that agree with each other, and those found by their guidance, best first.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        x0: (N, C) descriptors of image 0.
        x1: (M, C) descriptors of image 1.
        accepted: matches of the filter.
        config: constants.

    Returns:
        pairs (K, 2) and scores (K,): accepted matches keep their confidence of at least ½, found ones score below.
    """
    config = config.for_features(view0.shaped and view1.shaped)
    accepted = drop_outliers(view0, view1, accepted, config)
    if len(accepted.pairs) < config.min_anchors:
        return accepted.pairs, accepted.confidence
    guide = make_guide(view0, view1, accepted, config)
    i, j = _candidates(view0, view1, guide, config)
    found = torch.from_numpy(np.stack([i, j], axis=1)).to(accepted.pairs)  # (E, 2)
    distance = (x0[found[:, 0]] - x1[found[:, 1]]).norm(dim=1)  # (E,)
    usual = (x0[accepted.pairs[:, 0]] - x1[accepted.pairs[:, 1]]).norm(dim=1).quantile(config.distance_quantile)
    score = 0.5 * (1 - torch.from_numpy(guide.error(i, j) / config.tolerance).to(distance).square())  # (E,)
    close = distance <= config.distance_slack * usual
    found, distance, score = found[close], distance[close], score[close]
    mutual = _mutually_best(found, distance, len(x0), len(x1))
    mutual = mutual[torch.argsort(score[mutual], descending=True, stable=True)]
    return torch.cat([accepted.pairs, found[mutual]]), torch.cat([accepted.confidence, score[mutual]])


def _mutually_best(pairs: Tensor, distance: Tensor, count0: int, count1: int) -> Tensor:
    """(K,) which candidate pairs are the closest for both their keypoints; equal distances: one of them."""
    best0 = distance.new_full((count0,), torch.inf).scatter_reduce(0, pairs[:, 0], distance, "amin")
    best1 = distance.new_full((count1,), torch.inf).scatter_reduce(0, pairs[:, 1], distance, "amin")
    best = ((distance == best0[pairs[:, 0]]) & (distance == best1[pairs[:, 1]])).nonzero()[:, 0]
    return best[one_to_one(pairs[best], -distance[best])]
