"""Evidence of motion: how a candidate match moves against the matches around it, and against the whole image.

Voters are matches that speak for or against candidates; each is believed to some degree. The unit of all lengths is the
longer side of the image, so that sizes and resolutions do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.neighborhood import Keypoints

EDGE = 13  # numbers that describe a voter as seen from a candidate
LOCAL = 6  # numbers that describe a candidate against the motion of its voters
WHOLE = 3  # numbers that describe it against the motion of the whole image
GEOMETRY = 4  # numbers that describe it against the epipolar geometry and the homography of most matches
SAMPLES = 1000  # the most that are drawn to find either
TINY = 1e-6


@dataclass(frozen=True, eq=False)
class Side:
    """The voters of one image's keypoints, and what does not change from round to round."""

    owner: Tensor  # (E,) the candidate's keypoint in this image
    voters: Tensor  # (N, K) rows of the list of voters
    valid: Tensor  # (N, K) bool: is there such a voter, other than the keypoint's own match?
    offset: Tensor  # (N, K, 2) from the keypoint to the voter, in this image
    away: Tensor  # (N, K, 2) where the voter's partner is in the other image
    fits: Tensor  # (E, K, kernels) in which ways a voter fits the candidate
    kernel: Tensor  # (N, K) weight of a voter by its distance, 1 next to the keypoint
    place: Tensor  # (E, 2) the candidate's keypoint in the other image


def ends_of(views: list[Keypoints], pairs: Tensor) -> Tensor:
    """(E, 4) both ends of every candidate, in units of the longer sides."""
    return torch.cat([view.points[pairs[:, k]] / view.size.max() for k, view in enumerate(views)], dim=1)


@torch.no_grad()
def whole_motion(scene: Tensor, voters: Tensor, belief: Tensor) -> Tensor:
    """(E, WHOLE) candidates against the motion of the whole image, as far as voters (V,) are believed (V,).

    Ends of matches lie near a hyperplane of the four coordinates for distant cameras (affine epipolar geometry), near
    a plane for flat scenes. So: distance along the two thinnest directions of the believed voters, and how thin.
    """
    weight = belief / (belief.sum() + TINY)  # (V,)
    ends = scene[voters]  # (V, 4)
    centre = (weight[:, None] * ends).sum(0)  # (4,)
    spread = ends - centre
    covariance = (weight[:, None] * spread).T @ spread  # (4, 4)
    variance, axes = torch.linalg.eigh(covariance.double())  # ascending
    sigma = (variance.clamp(min=0) + 1e-5).sqrt().to(scene.dtype)  # (4,)
    along = ((scene - centre) @ axes[:, :2].to(scene.dtype)).abs() / sigma[:2]  # (E, 2)
    thin = (sigma[0] / sigma[3]).log().expand(len(scene), 1)
    return torch.cat([(along + 0.05).log(), thin], dim=1) / 3


@torch.no_grad()
def rigid_motion(view0: Keypoints, view1: Keypoints, matches: Tensor, pairs: Tensor) -> Tensor:
    """(E, GEOMETRY) candidates against the epipolar geometry and the homography that most matches follow.

    Of each: how far the candidate is from it, and the share of matches that follow it; zeros where there is none.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        matches: (K, 2) likely matches, best first.
        pairs: (E, 2) the candidates.
    """
    views, sides = (view0, view1), (0, 1)
    if _key(view0) > _key(view1):  # samples are drawn: the same ones, whichever image is called the first
        views, sides = (view1, view0), (1, 0)
    # Thousandths of the longer side, about pixels, which the estimators expect.
    points = [1000 * view.points.double() / view.size.max() for view in views]  # (N, 2), (M, 2)
    ends = [points[k][matches[:, side]].cpu().numpy() for k, side in enumerate(sides)]  # (K, 2)
    places = [points[k][pairs[:, side]] for k, side in enumerate(sides)]  # (E, 2)
    found = view0.points.new_zeros(len(pairs), GEOMETRY)
    if len(matches) >= 8:
        for k, (estimate, distance) in enumerate(((_fundamental, epipolar_distance), (_homography, transfer_distance))):
            matrix, share = estimate(*ends)
            if matrix is not None:
                off = distance(torch.from_numpy(matrix).to(places[0]), *places)
                found[:, 2 * k] = (off.clamp(max=1e4) + 1).log() / 2 - 1
                found[:, 2 * k + 1] = share
    return found


def _key(view: Keypoints) -> tuple[int, float]:
    return len(view.points), float(view.points.sum())


def _fundamental(points0: np.ndarray, points1: np.ndarray) -> tuple[np.ndarray | None, float]:
    """The fundamental matrix of most matches (K, 2), best first, and their share."""
    return _checked(cv2.findFundamentalMat(points0, points1, cv2.USAC_PROSAC, 3.0, 0.999, SAMPLES))


def _homography(points0: np.ndarray, points1: np.ndarray) -> tuple[np.ndarray | None, float]:
    """The homography of most matches (K, 2), best first, and their share."""
    return _checked(cv2.findHomography(points0, points1, cv2.USAC_PROSAC, 5.0, maxIters=SAMPLES, confidence=0.999))


def _checked(estimate: tuple[np.ndarray | None, np.ndarray | None]) -> tuple[np.ndarray | None, float]:
    matrix, inliers = estimate
    if matrix is None or inliers is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return None, 0.0
    return matrix, float(inliers.mean())


def epipolar_distance(matrix: Tensor, points0: Tensor, points1: Tensor) -> Tensor:
    """(E,) distance of matches from their epipolar lines, to first order (Sampson).

    Args:
        matrix: (3, 3) the fundamental matrix: a point of image 0 to its line in image 1.
        points0: (E, 2) ends in image 0.
        points1: (E, 2) ends in image 1.
    """
    first, second = (F.pad(points, (0, 1), value=1.0) for points in (points0, points1))  # (E, 3)
    line1, line0 = first @ matrix.T, second @ matrix  # (E, 3)
    slope = line1[:, :2].square().sum(1) + line0[:, :2].square().sum(1)  # (E,)
    return (line1 * second).sum(1).abs() / (slope.sqrt() + 1e-12)


def transfer_distance(matrix: Tensor, points0: Tensor, points1: Tensor) -> Tensor:
    """(E,) mean distance, in both images, between matches and where a homography takes them.

    Args:
        matrix: (3, 3) the homography from image 0 to image 1.
        points0: (E, 2) ends in image 0.
        points1: (E, 2) ends in image 1.
    """
    off = []
    for there, source, target in ((matrix, points0, points1), (torch.linalg.pinv(matrix), points1, points0)):
        moved = F.pad(source, (0, 1), value=1.0) @ there.T  # (E, 3)
        depth = moved[:, 2:].abs().clamp(min=1e-9) * torch.where(moved[:, 2:] < 0, -1.0, 1.0)  # (E, 1)
        off.append((moved[:, :2] / depth - target).norm(dim=1))
    return (off[0] + off[1]) / 2


def local_motion(side: Side, belief: Tensor, voters: Tensor) -> tuple[Tensor, Tensor]:
    """The similarity transform that the voters of a keypoint follow, weighted by belief.

    Returns:
        (E, LOCAL) the candidates against it, and (N, 2) where it takes the keypoints.
    """
    weight = side.kernel * belief[side.voters] + TINY  # (N, K)
    total = weight.sum(1, keepdim=True)  # (N, 1)
    share = (weight / total)[..., None]  # (N, K, 1)
    centre, goal = (share * side.offset).sum(1), (share * side.away).sum(1)  # (N, 2)
    u, q = side.offset - centre[:, None], side.away - goal[:, None]  # (N, K, 2)
    spread = (share * u.square()).sum((1, 2)) + TINY  # (N,)
    # The similarity q = z · u in complex numbers, by least squares.
    real = (share[..., 0] * (u * q).sum(2)).sum(1) / spread  # (N,)
    imaginary = (share[..., 0] * (u[..., 0] * q[..., 1] - u[..., 1] * q[..., 0])).sum(1) / spread
    moved = torch.stack(
        [real * centre[:, 0] - imaginary * centre[:, 1], imaginary * centre[:, 0] + real * centre[:, 1]], dim=1
    )
    predicted = goal - moved  # (N, 2) the keypoint itself is at offset 0
    size = ((share[..., 0] * q.square().sum(2)).sum(1) + TINY).sqrt()  # (N,) spread of the partners
    effective = total[:, 0].square() / weight.square().sum(1)  # (N,)
    residual = (side.place - predicted[side.owner]).norm(dim=1)  # (E,)
    # The local scale and rotation against those of all believed voters.
    length = (real.square() + imaginary.square() + TINY).sqrt()  # (N,)
    scale, cosine, sine = length.log().clamp(-4, 4), real / length, imaginary / length
    at = side.owner[voters]  # (V,)
    trust = belief / (belief.sum() + TINY)  # (V,)
    mean = (trust * scale[at]).sum()
    cos0, sin0 = (trust * cosine[at]).sum(), (trust * sine[at]).sum()
    per_keypoint = torch.stack(
        [
            effective.log() / 3,
            (total[:, 0] + 0.01).log() / 3,
            (scale - mean).abs() / 2,
            cosine * cos0 + sine * sin0,
        ],
        dim=1,
    )  # (N, 4)
    own = torch.stack([(residual / size[side.owner] + 0.01).log() / 3, (residual + 1e-3).log() / 4], dim=1)  # (E, 2)
    return torch.cat([own, per_keypoint[side.owner]], dim=1), predicted


def describe_voters(
    u: Tensor, w: Tensor, spacing: Tensor, view: Keypoints, other: Keypoints, pairs: Tensor, voters: Tensor
) -> Tensor:
    """(E, K, EDGE) how voters look from candidates.

    Plane vectors are complex numbers here: w / u is by how much the step to the voter is scaled and rotated.

    Args:
        u: (N, K, 2) from a keypoint of this image to its voters.
        w: (E, K, 2) from a candidate's end in the other image to the voters' ends there.
        spacing: (N,) mean distance of a keypoint's voters.
        view: where the keypoints of this image are.
        other: the same for the other image.
        pairs: (E, 2) the candidates, this image's keypoint first.
        voters: (E, K, 2) the voters of each in the same manner.
    """
    owner = pairs[:, 0]
    square = u.square().sum(2) + TINY**2  # (N, K)
    length = 0.5 * square.log()  # (N, K)
    x, y = (u / square[..., None])[owner].unbind(2)  # (E, K)
    wx, wy = w.unbind(2)
    real, imaginary = x * wx + y * wy, x * wy - y * wx  # (E, K) of w / u
    size = real.square() + imaginary.square() + TINY  # (E, K)
    inverse = size.rsqrt()
    cosine, sine = real * inverse, imaginary * inverse
    ratio = (0.5 * size.log()).clamp(-4, 4)
    relative = (length - spacing[:, None].log()).clamp(-3, 3)  # (N, K)
    edges = ratio.new_zeros(*ratio.shape, EDGE)
    edges[..., 0], edges[..., 1] = relative[owner], (length / 4).clamp(min=-3)[owner]
    edges[..., 2] = edges[..., 1] + ratio / 4
    edges[..., 3], edges[..., 4], edges[..., 5] = ratio, cosine, sine
    edges[..., 6] = (size - 2 * real + 1).clamp(min=TINY, max=64).log() / 4  # how far w is from u itself
    claims = (pairs[:, None], voters)  # what the candidate and what the voter claim by their own rotation and scale
    if view.oris is not None and other.oris is not None:
        for k, index in enumerate(claims):
            angle = other.oris[index[..., 1]] - view.oris[index[..., 0]]
            edges[..., 7 + 2 * k] = cosine * angle.cos() + sine * angle.sin()
            edges[..., 8 + 2 * k] = sine * angle.cos() - cosine * angle.sin()
    if view.scales is not None and other.scales is not None:
        scale0, scale1 = (view.scales / view.size.max()).log(), (other.scales / other.size.max()).log()
        for k, index in enumerate(claims):
            edges[..., 11 + k] = (ratio - scale1[index[..., 1]] + scale0[index[..., 0]]).clamp(-4, 4)
    return edges
