"""Local motion: the similarity transform that the voters around a keypoint follow, and candidates against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.motion import TINY, Side
from linglue.matching.together import together

LOCAL = 6  # numbers that describe a candidate against the motion of its voters
KEYPOINTS = 2048  # whose voters are looked at together: what lies between stays in the cache


def local_motions(sides: Sequence[Side], belief: Tensor, voters: Tensor) -> list[Tensor]:
    """(N, 7), (M, 7): the similarity transform that the voters of each keypoint follow, weighted by belief.

    x and y of where it takes the keypoint, how far its voters' partners are spread, and four numbers for the network:
    how many voters agree to it, how much they are believed, and its scale and rotation against those of all voters.

    Args:
        sides: the voters of the keypoints of both images.
        belief: (V,) in the voters, from 0 to 1.
        voters: (V,) which candidates they are.
    """
    believed = F.pad(belief, (0, 1))  # (V + 1,)
    parts = [(side, block) for side in sides for block in _blocks(len(side.voters))]
    found = together(lambda part: _fit_similarity(*part, believed), parts)
    motions = []
    for side in sides:
        motion = torch.cat(
            [fit for (owner, _), fit in zip(parts, found, strict=True) if owner is side], dim=1
        )  # (8, N)
        motions.append(_against_all(motion, side.owner.index_select(0, voters), belief))
    return motions


def _blocks(count: int) -> list[slice]:
    """Keypoints whose voters are looked at together; all of them with gradients.

    The last block takes what is left: sums over a few columns are rounded in another way than those over many.
    """
    number = 1 if torch.is_grad_enabled() else max(1, count // KEYPOINTS)
    return [slice(k * KEYPOINTS, (k + 1) * KEYPOINTS if k + 1 < number else count) for k in range(number)]


def _fit_similarity(side: Side, part: slice, belief: Tensor) -> Tensor:
    """(8, n) x, y, size, agreement, belief, log of scale, cosine and sine of the motion around some keypoints.

    Args:
        side: the voters of the keypoints of an image.
        part: which keypoints.
        belief: (V + 1,) in the voters, and in nobody.
    """
    ends, kernel = side.ends[:, :, part], side.kernel[:, part]  # (4, K, n), (K, n)
    believed = belief.index_select(0, side.voters[part].T.flatten())  # (K·n,)
    weight = kernel * believed.view_as(kernel) + TINY  # (K, n)
    total = weight.sum(0)  # (n,)
    share = weight / total  # (K, n)
    mean = (share * ends).sum(1)  # (4, n)
    spread = ends - mean[:, None]  # (4, K, n)
    centre, goal, u, q = mean[:2], mean[2:], spread[:2], spread[2:]
    weighted = share * u  # (2, K, n)
    square = (weighted * u).sum((0, 1)) + TINY  # (n,)
    # The similarity q = z · u in complex numbers, by least squares.
    real = (weighted * q).sum((0, 1)) / square  # (n,)
    imaginary = (weighted[0] * q[1] - weighted[1] * q[0]).sum(0) / square
    # The keypoint itself is at offset 0.
    predicted = goal - torch.stack(
        [real * centre[0] - imaginary * centre[1], imaginary * centre[0] + real * centre[1]]
    )  # (2, n)
    size = ((share * q.square().sum(0)).sum(0) + TINY).sqrt()  # (n,)
    effective = total.square() / weight.square().sum(0)  # (n,)
    length = (real.square() + imaginary.square() + TINY).sqrt()  # (n,)
    turn = [length.log().clamp(-4, 4), real / length, imaginary / length]
    return torch.stack([*predicted, size, effective.log() / 3, (total + 0.01).log() / 3, *turn])


def _against_all(motion: Tensor, at: Tensor, belief: Tensor) -> Tensor:
    """(N, 7) of `local_motions` from the fits (8, N): local scale and rotation against those at all voters (V,)."""
    scale, cosine, sine = motion[5:]
    trust = belief / (belief.sum() + TINY)  # (V,)
    scale0, cosine0, sine0 = ((trust * value.index_select(0, at)).sum() for value in (scale, cosine, sine))
    against = [(scale - scale0).abs() / 2, cosine * cosine0 + sine * sine0]
    return torch.stack([*motion[:5], *against], dim=1)


def against_motion(place: Tensor, motion: Tensor) -> Tensor:
    """(E, LOCAL) candidates against the motion of the voters around them.

    Args:
        place: (E, 2) where the candidates' partners are.
        motion: (E, 7) rows of `local_motions`.
    """
    residual = (place - motion[:, :2]).norm(dim=1)  # (E,)
    own = torch.stack([(residual / motion[:, 2] + 0.01).log() / 3, (residual + 1e-3).log() / 4], dim=1)  # (E, 2)
    return torch.cat([own, motion[:, 3:]], dim=1)
