"""Evidence of motion: how a candidate match moves against the matches around it, and against the whole image.

Voters are matches that speak for or against candidates; each is believed to some degree. The unit of all lengths is the
longer side of the image, so that sizes and resolutions do not matter. What depends on a keypoint and its voters is
computed once per keypoint, (N, K); candidates pick the rows of their keypoints, (E, K), some candidates at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from linglue.matching.candidates import tree_of
from linglue.matching.neighborhood import Keypoints
from linglue.matching.together import slices, together

EDGE = 13  # numbers that describe a voter as seen from a candidate
SHAPE, ORIENTATION, SCALE = range(7), range(7, 11), range(11, 13)  # what they come from
WHOLE = 3  # numbers that describe it against the motion of the whole image
GEOMETRY = 4  # numbers that describe it against the epipolar geometry and the homography of most matches
SAMPLES = 2000  # the most that are drawn to find either
OFF_LINE = 5.0  # thousandths of the longer side: partners are proposed only nearer to the epipolar line
CHUNK = 2048  # candidates of which the numbers of all voters exist at a time: they stay in the cache
TINY = 1e-6


@dataclass(frozen=True, eq=False)
class Side:
    """The voters of one image's keypoints, and what does not change from round to round."""

    owner: Tensor  # (E,) the candidate's keypoint in this image
    voters: Tensor  # (N, K) int32 rows of the list of voters, V where there is none but the keypoint's own match
    ends: Tensor  # (4, K, N) x, y from the keypoint to the voter in this image; x, y of its partner in the other
    kernel: Tensor  # (K, N) weight of a voter by its distance, 1 next to the keypoint
    place: Tensor  # (E, 2) the candidate's keypoint in the other image
    kept: list[Tensor]  # (c, K, kernels) in which ways a voter fits the candidate; of the first chunks of candidates
    fits_of: Callable[[slice], Tensor]  # the same of any chunk

    def votes(self, part: slice, weights: Tensor) -> Tensor:
        """(c, kernels) sums of how the voters fit the candidates of a chunk, weighted by rows of `weights`.

        Args:
            part: of `chunks`.
            weights: (V + 1, kernels) of the voters, and of nobody.
        """
        number = part.start // CHUNK
        fits = self.kept[number] if number < len(self.kept) else self.fits_of(part)  # (c, K, kernels)
        voters = self.voters.index_select(0, self.owner[part]).flatten()  # (c·K,)
        heard = weights.index_select(0, voters).view_as(fits)
        return (heard * fits if torch.is_grad_enabled() else heard.mul_(fits)).sum(1)


def chunks(count: int) -> Iterator[slice]:
    """Slices of at most CHUNK candidates that cover `count`."""
    return slices(count, CHUNK)


def nearest_voters(points: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(N, K) which of the places (V, 2) are the `count` nearest of the points (N, 2), and which exist.

    Args:
        points: (N, 2) keypoints.
        places: (V, 2) voters.
        count: K.
    """
    distance, index = tree_of(places).query(points.cpu().numpy(), k=range(1, count + 1))
    exists = torch.from_numpy(np.isfinite(distance)).to(points.device)
    return torch.from_numpy(index).to(points.device).masked_fill_(~exists, 0), exists


class Surroundings:
    """Where the voters of the keypoints of one image are, in both images. Lengths: longer sides of the images.

    Plane vectors are complex numbers here: with u from a keypoint to a voter, and w from the candidate's end in the
    other image to the voter's end there, w / u is by how much the step to the voter is scaled and rotated.
    """

    @torch.no_grad()
    def __init__(
        self, view: Keypoints, other: Keypoints, pairs: Tensor, voters: Tensor, sure: Tensor, near: int, far: int
    ) -> None:
        """Find the voters.

        Args:
            view: where the keypoints of this image are.
            other: the same for the other image.
            pairs: (E, 2) the candidates, this image's keypoint first.
            voters: (V,) which of them vote.
            sure: (S,) which of the voters are the surest.
            near: so many of a keypoint's voters are the nearest of all,
            far: and so many the nearest of the surest.
        """
        points, partners = view.points / view.size.max(), other.points / other.size.max()  # (N, 2), (M, 2)
        self.owner, target = pairs.unbind(1)  # (E,)
        self.place = partners.index_select(0, target)  # (E, 2)
        source = self.owner.index_select(0, voters)  # (V,)
        places = points.index_select(0, source)  # (V, 2)
        beside, exists = nearest_voters(points, places, near)  # (N, near)
        surest, exist = nearest_voters(points, places.index_select(0, sure), far)  # (N, far)
        self.voters = torch.cat([beside, sure[surest]], dim=1).int()  # (N, K)
        exists = torch.cat([exists, exist], dim=1)  # (N, K)
        self.shape, flat = self.voters.shape, self.voters.flatten()
        own = source.index_select(0, flat).view(self.shape) == torch.arange(len(points), device=flat.device)[:, None]
        valid = exists & ~own  # (N, K)
        offset = [self._of_voters(places[:, k], flat) - points[:, k, None] for k in (0, 1)]  # (N, K) each
        self.away = [self._of_voters(self.place[:, k].index_select(0, voters), flat) for k in (0, 1)]  # (N, K) each
        self.ends = torch.stack([plane.T for plane in (*offset, *self.away)])  # (4, K, N)
        square = offset[0].square() + offset[1].square()  # (N, K)
        reach = square.sqrt() * valid  # (N, K)
        spacing = (reach.sum(1) / valid.sum(1).clamp(min=1)).clamp(min=TINY)  # (N,)
        kernel = (-0.5 * (reach / spacing[:, None]).square()).exp() * valid  # (N, K)
        self.kernel = kernel.T.contiguous()  # (K, N)
        square += TINY**2
        self.inverse = [part / square for part in offset]  # of u: its conjugate / |u|²
        self._tabulate(0.5 * square.log(), spacing, view, other, pairs, voters)
        self.voters.masked_fill_(~valid, len(voters))

    def _of_voters(self, value: Tensor, flat: Tensor) -> Tensor:
        """(N, K) of every keypoint's voters, from (V,)."""
        return value.index_select(0, flat).view(self.shape)

    def _tabulate(
        self, length: Tensor, spacing: Tensor, view: Keypoints, other: Keypoints, pairs: Tensor, voters: Tensor
    ) -> None:
        """What `describe` picks rows of; `length` (N, K) is the logarithm of how far voters are."""
        self.relative = (length - spacing[:, None].log()).clamp_(-3, 3)
        self.length = (length / 4).clamp_(min=-3)
        # What candidates, and what voters claim by their own rotation and scale.
        self.columns, claimed = [*SHAPE], []
        if view.oris is not None and other.oris is not None:
            angle = other.oris.index_select(0, pairs[:, 1]) - view.oris.index_select(0, pairs[:, 0])  # (E,)
            self.columns += ORIENTATION
            claimed += [angle.cos(), angle.sin()]
        if view.scales is not None and other.scales is not None:
            scale0, scale1 = (view.scales / view.size.max()).log(), (other.scales / other.size.max()).log()
            self.columns += SCALE
            claimed.append(scale1.index_select(0, pairs[:, 1]) - scale0.index_select(0, pairs[:, 0]))  # (E,)
        flat = self.voters.flatten()
        self.claims = [(claim, self._of_voters(claim.index_select(0, voters), flat)) for claim in claimed]

    @torch.no_grad()
    def describe(self, part: slice) -> Tensor:
        """(columns + 1, c, K) how voters look from some candidates, each number in a plane of its own; ones behind."""
        owner = self.owner[part]  # (c,)
        edges = self.relative.new_empty(len(self.columns) + 1, len(owner), self.shape[1])
        edges[-1] = 1
        relative, length, _, ratio, cosine, sine, unlike = edges[:7]  # (c, K) each
        torch.index_select(self.relative, 0, owner, out=relative)
        torch.index_select(self.length, 0, owner, out=length)
        x, y = (table.index_select(0, owner) for table in self.inverse)  # (c, K)
        wx, wy = (
            away.index_select(0, owner).sub_(place[:, None])
            for away, place in zip(self.away, self.place[part].unbind(1), strict=True)
        )
        real, imaginary = (x * wx).addcmul_(y, wy), (x * wy).addcmul_(y, wx, value=-1)  # of w / u
        size = real.square().addcmul_(imaginary, imaginary).add_(TINY)
        torch.mul(size.log(), 0.5, out=ratio).clamp_(-4, 4)
        torch.add(length, ratio, alpha=0.25, out=edges[2])
        inverse = size.rsqrt()
        torch.mul(real, inverse, out=cosine)
        torch.mul(imaginary, inverse, out=sine)
        # How far w is from u itself.
        torch.log(size.sub_(real, alpha=2).add_(1).clamp_(min=TINY, max=64), out=unlike).div_(4)
        if len(self.columns) > len(SHAPE):
            self._describe_claims(part, edges)
        return edges

    def _describe_claims(self, part: slice, edges: Tensor) -> None:
        """Whether voters do what the candidate, and what they themselves claim by their own rotation and scale."""
        ratio, cosine, sine = edges[3:6]
        owner, row = self.owner[part], len(SHAPE)
        found = [(claim[part, None], table.index_select(0, owner)) for claim, table in self.claims]
        if ORIENTATION[0] in self.columns:
            (cosines, sines), found = found[:2], found[2:]
            for c, s in zip(cosines, sines, strict=True):  # of the candidate (c, 1), of the voters (c, K)
                edges[row] = cosine * c + sine * s
                edges[row + 1] = sine * c - cosine * s
                row += 2
        for scales in found:
            for scale in scales:
                edges[row] = (ratio - scale).clamp_(-4, 4)
                row += 1


def ends_of(views: list[Keypoints], pairs: Tensor) -> Tensor:
    """(E, 4) both ends of every candidate, in units of the longer sides."""
    ends = [view.points.index_select(0, pairs[:, k]) / view.size.max() for k, view in enumerate(views)]
    return torch.cat(ends, dim=1)


@torch.no_grad()
def whole_motion(scene: Tensor, voters: Tensor, belief: Tensor) -> Tensor:
    """(E, WHOLE) candidates against the motion of the whole image, as far as voters (V,) are believed (V,).

    Ends of matches lie near a hyperplane of the four coordinates for distant cameras (affine epipolar geometry), near
    a plane for flat scenes. So: distance along the two thinnest directions of the believed voters, and how thin.
    """
    weight = belief / (belief.sum() + TINY)  # (V,)
    ends = scene.index_select(0, voters)  # (V, 4)
    centre = (weight[:, None] * ends).sum(0)  # (4,)
    spread = ends - centre
    covariance = (weight[:, None] * spread).T @ spread  # (4, 4)
    variance, axes = torch.linalg.eigh(covariance.double())  # ascending
    sigma = (variance.clamp(min=0) + 1e-5).sqrt().to(scene.dtype)  # (4,)
    along = ((scene - centre) @ axes[:, :2].to(scene.dtype)).abs() / sigma[:2]  # (E, 2)
    thin = (sigma[0] / sigma[3]).log().expand(len(scene), 1)
    return torch.cat([(along + 0.05).log(), thin], dim=1) / 3


class Rigid:
    """The epipolar geometry and the homography that most matches follow, as far as there are any.

    The same ones, whichever image is called the first, although samples are drawn.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        matches: (K, 2) likely matches, best first.

    Example:
        >>> view = Keypoints(torch.rand(9, 2) * 99, torch.tensor([100.0, 100.0]))
        >>> Rigid(view, view, torch.zeros(0, 2, dtype=torch.long)).describe(torch.zeros(3, 2, dtype=torch.long)).shape
        torch.Size([3, 4])
    """

    @torch.no_grad()
    def __init__(self, view0: Keypoints, view1: Keypoints, matches: Tensor) -> None:
        views, self._sides = (view0, view1), (0, 1)
        if rank(view0) > rank(view1):
            views, self._sides = (view1, view0), (1, 0)
        # Thousandths of the longer side, about pixels, which the estimators expect; x and y in a plane each.
        self._points = [1000 * view.points.T.double() / view.size.max() for view in views]  # (2, N), (2, M)
        self.found: list[tuple[Tensor | None, float]] = [(None, 0.0), (None, 0.0)]  # matrix (3, 3), share of followers
        if len(matches) >= 8:
            ends = [end.cpu().numpy() for end in self._ends(matches[:, 0], matches[:, 1])]
            for k, (matrix, share) in enumerate(together(lambda find: find(*ends), (_fundamental, _homography))):
                if matrix is not None:
                    self.found[k] = torch.from_numpy(matrix).to(self._points[0]), share

    def _ends(self, index0: Tensor, index1: Tensor) -> list[Tensor]:
        """(…, 2) in either image of keypoints of image 0 and of image 1."""
        index = (index0, index1)
        return [
            torch.stack([plane.index_select(0, index[side].flatten()) for plane in points])  # (2, E)
            .view(2, *index[side].shape)
            .movedim(0, -1)
            for points, side in zip(self._points, self._sides, strict=True)
        ]

    @torch.no_grad()
    def describe(self, pairs: Tensor) -> Tensor:
        """(E, GEOMETRY) of pairs (E, 2): how far from each geometry, and its share of matches; zeros without one."""
        described = self._points[0].new_zeros(len(pairs), GEOMETRY, dtype=torch.float32)
        ends = self._ends(pairs[:, 0], pairs[:, 1])
        for k, ((matrix, share), distance) in enumerate(
            zip(self.found, (epipolar_distance, transfer_distance), strict=True)
        ):
            if matrix is not None:
                described[:, 2 * k] = distance(matrix, *ends).clamp_(max=1e4).add_(1).log_().div_(2).sub_(1)
                described[:, 2 * k + 1] = share
        return described

    @torch.no_grad()
    def off_line(self, index0: Tensor, index1: Tensor) -> Tensor:
        """(n, m) bool: further than OFF_LINE from the epipolar line; False where there is no epipolar geometry.

        Args:
            index0: (n, m) or (n, 1) keypoints of image 0.
            index1: (n, m) or (n, 1) keypoints of image 1.
        """
        matrix, _ = self.found[0]
        if matrix is None:
            return torch.zeros_like(index0 + index1, dtype=torch.bool)
        return epipolar_distance(matrix, *self._ends(index0, index1)) > OFF_LINE


def rank(view: Keypoints) -> tuple[int, float]:
    """Decides which of two images comes first where one must, whichever of them is called image 0."""
    return len(view.points), float(view.points.sum())


def _fundamental(points0: np.ndarray, points1: np.ndarray) -> tuple[np.ndarray | None, float]:
    """The fundamental matrix of most matches (K, 2), whatever their order, and their share."""
    order = np.lexsort(points0.T)  # samples are drawn by number: scores that round differently must not change them
    points0, points1 = points0[order], points1[order]
    return _estimate(cv2.findFundamentalMat, points0, points1, cv2.USAC_MAGSAC, 2.0, 0.999, SAMPLES)


def _homography(points0: np.ndarray, points1: np.ndarray) -> tuple[np.ndarray | None, float]:
    """The homography of most matches (K, 2), best first, and their share."""
    return _estimate(cv2.findHomography, points0, points1, cv2.USAC_PROSAC, 5.0, None, SAMPLES, 0.999)


def _estimate(find: Callable[..., Any], *arguments: Any) -> tuple[np.ndarray | None, float]:
    """The matrix that OpenCV finds and the share of matches that follow it; None and 0 where it finds none."""
    try:
        matrix, inliers = find(*arguments)
    except cv2.error:  # a few degenerate samples stop its estimator instead of being passed over
        return None, 0.0
    if matrix is None or inliers is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return None, 0.0
    return matrix, float(inliers.mean())


def epipolar_distance(matrix: Tensor, points0: Tensor, points1: Tensor) -> Tensor:
    """(…) distance of matches from their epipolar lines, to first order (Sampson).

    Args:
        matrix: (3, 3) the fundamental matrix: a point of image 0 to its line in image 1.
        points0: (…, 2) ends in image 0.
        points1: (…, 2) ends in image 1.
    """
    (x0, y0), (x1, y1) = points0.unbind(-1), points1.unbind(-1)
    lines1, lines0 = _times(matrix, x0, y0), _times(matrix.T, x1, y1)  # three numbers per point each
    slope = lines1[0].square() + lines1[1].square() + lines0[0].square() + lines0[1].square()
    return (lines1[0] * x1 + lines1[1] * y1 + lines1[2]).abs() / (slope.sqrt() + 1e-12)


def transfer_distance(matrix: Tensor, points0: Tensor, points1: Tensor) -> Tensor:
    """(…) mean distance, in both images, between matches and where a homography takes them.

    Args:
        matrix: (3, 3) the homography from image 0 to image 1.
        points0: (…, 2) ends in image 0.
        points1: (…, 2) ends in image 1.
    """
    off = []
    for there, source, target in ((matrix, points0, points1), (torch.linalg.pinv(matrix), points1, points0)):
        x, y, depth = _times(there, *source.unbind(-1))
        depth = depth.abs().clamp(min=1e-9).copysign(depth)
        off.append(torch.hypot(x / depth - target[..., 0], y / depth - target[..., 1]))
    return (off[0] + off[1]) / 2


def _times(matrix: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """The three parts of matrix · (x, y, 1), for points in planes: much faster than products of small matrices."""
    return [a * x + b * y + c for a, b, c in matrix.tolist()]
