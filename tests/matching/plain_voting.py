"""The learned consensus as plainly as it can be written: every number of every candidate and voter at once.

The reference that the fast implementation in `linglue.matching` is compared with. It has the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from linglue.matching.candidates import SIDE, Candidates, describe_candidates, find_candidates
from linglue.matching.local_motion import LOCAL
from linglue.matching.motion import EDGE, TINY, WHOLE, Rigid, ends_of, whole_motion
from linglue.matching.nearest import nearest_k
from linglue.matching.neighborhood import Keypoints
from linglue.matching.voting import CHOICE, PRIOR, UNLIKELY, Scored, Voting, VotingConfig


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


def among_best(owner: Tensor, scores: Tensor, count: int) -> Tensor:
    """(E,) bool: among the `count` best candidates of its owner; equal scores in their order."""
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]  # by owner, best first
    sorted_owner = owner[order]
    start = torch.searchsorted(sorted_owner, sorted_owner)  # (E,) where the owner begins
    rank = torch.arange(len(order), device=order.device) - start
    found = torch.zeros_like(scores, dtype=torch.bool)
    found[order] = rank < count
    return found


@torch.no_grad()
def propose(
    predicted: Tensor, points: Tensor, mine: Tensor, theirs: Tensor, around: int, wrong: Callable[[Tensor], Tensor]
) -> Tensor:
    """(N, 2) every keypoint with the most similar of the `around` points (M, 2) next to its predicted one (N, 2).

    Args:
        predicted: (N, 2) where the keypoints of this image should be in the other.
        points: (M, 2) keypoints of the other image.
        mine: (N, C) descriptors of this image.
        theirs: (M, C) descriptors of the other.
        around: how many points are compared.
        wrong: pairs (E, 2) → (E,) bool: proposed only where there is nothing else.
    """
    found = []
    for number, place in enumerate(predicted):
        near = (points - place).double().norm(dim=1).argsort(stable=True)[:around]  # (count,)
        pairs = torch.stack([torch.full_like(near, number), near], dim=1)  # (count, 2)
        similar = theirs[near] @ mine[number] - 2 * wrong(pairs)  # (count,)
        found.append(pairs[similar.argmax()])
    return torch.stack(found)


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


class PlainRound(nn.Module):
    """Voters weigh in once; every candidate's state moves on."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__()
        w = config.width
        self.weights = nn.Linear(w, config.kernels)
        self.belief = nn.Linear(w, 1)
        self.votes = nn.Sequential(nn.Linear(config.kernels + LOCAL + WHOLE, w), nn.ReLU())
        self.update = nn.Sequential(nn.LayerNorm(2 * w), nn.Linear(2 * w, 2 * w), nn.ReLU(), nn.Linear(2 * w, w))
        self.logit = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 1))

    def forward(
        self, state: Tensor, voters: Tensor, sides: list[Side], scene: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """state (E, W), voters (V,) rows of it, scene (E, 4) → the next state, a logit (E,), predictions (N, 2)."""
        voices = state[voters]  # (V, W)
        weights = self.weights(voices).sigmoid()  # (V, kernels)
        belief = self.belief(voices).sigmoid()[:, 0]  # (V,)
        whole = whole_motion(scene, voters, belief.detach())  # (E, WHOLE)
        heard, predicted = [], []
        for side in sides:
            weight = (weights[side.voters] * side.valid[..., None])[side.owner]  # (E, K, kernels)
            votes = (side.fits * weight).mean(1)  # (E, kernels)
            fit, place = local_motion(side, belief, voters)
            predicted.append(place)
            heard.append(self.votes(torch.cat([votes, fit, whole], dim=1)))  # (E, W)
        state = state + self.update(torch.cat([state, heard[0] + heard[1]], dim=1))
        return state, self.logit(state)[:, 0], predicted


class PlainLook(nn.Module):
    """Candidates and voters in, logits after every round and predicted places out."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.similarity = nn.Linear(1 + PRIOR, w)
        self.side = nn.Sequential(nn.Linear(SIDE, w), nn.ReLU(), nn.Linear(w, w))
        self.start = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w))
        self.fits = nn.Sequential(
            nn.Linear(EDGE, config.kernels), nn.ReLU(), nn.Linear(config.kernels, config.kernels), nn.ReLU()
        )
        self.rounds = nn.ModuleList(PlainRound(config) for _ in range(config.rounds))

    def forward(
        self, view0: Keypoints, view1: Keypoints, candidates: Candidates, votes: Tensor, trust: Tensor, prior: Tensor
    ) -> tuple[Scored, list[Tensor] | None]:
        """Logits of the candidates, of which `votes` (E,) have a vote; where voters predict the partners to be."""
        own = torch.cat([candidates.similarity[:, None], prior], dim=1)  # (E, 1 + PRIOR)
        state = self.start(self.similarity(own) + sum(self.side(s) for s in candidates.sides))  # (E, W)
        voters = votes.nonzero()[:, 0]  # (V,)
        if not len(voters):  # nobody votes where there is nothing to choose from
            return Scored([state[:, 0]] * len(self.rounds), candidates), None
        views = [view0, view1]
        scene = ends_of(views, candidates.pairs)
        order = sorted(range(len(voters)), key=lambda voter: -float(trust[voters[voter]].detach()))
        sure = torch.tensor(order[: len(voters) // self.config.sure + self.config.far])
        sides = [self._side(views[k], views[1 - k], candidates, voters, sure, k) for k in (0, 1)]
        logits, predicted = [], []
        for layer in self.rounds:
            state, logit, predicted = layer(state, voters, sides, scene)
            logits.append(logit)
        return Scored(logits, candidates), predicted

    def _side(
        self, view: Keypoints, other: Keypoints, candidates: Candidates, voters: Tensor, sure: Tensor, side: int
    ) -> Side:
        """Which voters each keypoint of `view` has, and how they look from its candidates."""
        # Unit: the longer side of the image, so that sizes and resolutions do not matter.
        points, partners = view.points / view.size.max(), other.points / other.size.max()
        pairs = candidates.pairs if side == 0 else candidates.pairs.flip(1)  # (E, 2) this image's keypoint first
        source, target = pairs[voters].T  # (V,)
        chosen, valid = self._neighbours(points, points[source], sure)  # (N, K)
        own = source[chosen] == torch.arange(len(points), device=points.device)[:, None]
        valid = valid & ~own
        offset = points[source][chosen] - points[:, None]  # (N, K, 2)
        away = partners[target][chosen]  # (N, K, 2)
        place = partners[pairs[:, 1]]  # (E, 2)
        owner = pairs[:, 0]
        reach = offset.norm(dim=2).masked_fill(~valid, 0)  # (N, K)
        spacing = (reach.sum(1) / valid.sum(1).clamp(min=1)).clamp(min=TINY)  # (N,)
        kernel = (-0.5 * (reach / spacing[:, None]).square()).exp() * valid
        away_from = away[owner] - place[:, None]  # (E, K, 2)
        edges = describe_voters(offset, away_from, spacing, view, other, pairs, pairs[voters][chosen[owner]])
        fits = self.fits(edges)  # (E, K, kernels)
        return Side(owner, chosen, valid, offset, away, fits, kernel, place)

    def _neighbours(self, points: Tensor, places: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) the nearest of the places (V, 2) and of the sure ones (S,) of every point (N, 2), and which exist."""
        found, exists = [], []
        for count, which in ((self.config.near + 1, torch.arange(len(places))), (self.config.far, sure)):
            distance, index = cKDTree(places[which].cpu().numpy()).query(points.cpu().numpy(), k=range(1, count + 1))
            there = torch.from_numpy(np.isfinite(distance)).to(points.device)
            exists.append(there)
            found.append(which[torch.where(there, torch.from_numpy(index).to(points.device), 0)])
        return torch.cat(found, dim=1), torch.cat(exists, dim=1)


def winners_of(scored: Scored) -> Tensor:
    """(K,) candidates that have the best score of both their keypoints; best first."""
    scores, pairs = scored.scores, scored.candidates.pairs
    keep = torch.ones_like(scores, dtype=torch.bool)
    for side in (0, 1):
        keep = keep & among_best(pairs[:, side], scores, 1)
    chosen = keep.nonzero()[:, 0]
    return chosen[scores[chosen].argsort(descending=True, stable=True)]


class PlainVoting(Voting):
    """`Voting` with looks, proposals and ranks in their plain form."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__(config)
        self.looks = nn.ModuleList(PlainLook(config) for _ in range(2))

    def forward(self, view0: Keypoints, view1: Keypoints, x0: Tensor, x1: Tensor) -> list[Scored]:
        """What each look says."""
        there, back = nearest_k(x0, x1, self.config.candidates)
        candidates = find_candidates(there, back)
        prior = x0.new_zeros(len(candidates.pairs), PRIOR)  # (E, PRIOR)
        trust = candidates.sides[0][:, 1] + candidates.sides[1][:, 1]  # (E,)
        last, predicted = self.looks[0](view0, view1, candidates, candidates.mutual, trust, prior)
        found = [last]
        while predicted is not None and len(found) < self.config.looks:
            chosen = winners_of(last)  # (K,)
            likely = chosen[last.scores[chosen] > UNLIKELY]
            rigid = Rigid(view0, view1, last.candidates.pairs[likely])
            pairs, known = self._plain_pairs(last, predicted, rigid, view0, view1, x0, x1)
            similarity = (x0[pairs[:, 0]] * x1[pairs[:, 1]]).sum(1)  # (E',)
            candidates = describe_candidates(pairs, similarity, there, back)
            prior, winners = self._prior(last, known)
            prior[:, CHOICE:] = rigid.describe(pairs)
            trust = last.scores[known]
            last, predicted = self.looks[1](view0, view1, candidates, winners, trust, prior)
            found.append(last)
        return [*found[:-1], replace(last, pair=self.pair, calibration=self.calibration)]

    @torch.no_grad()
    def _plain_pairs(
        self,
        last: Scored,
        predicted: list[Tensor],
        rigid: Rigid,
        view0: Keypoints,
        view1: Keypoints,
        x0: Tensor,
        x1: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Pairs (E', 2) for the next look, and (E',) which candidates of the last they are, −1 for new ones."""
        pairs, scores = last.candidates.pairs, last.scores
        kept = torch.zeros_like(scores, dtype=torch.bool)
        for side in (0, 1):
            kept |= among_best(pairs[:, side], scores, self.config.kept)
        points0, points1 = (view.points / view.size.max() for view in (view0, view1))
        around = self.config.around
        new0 = propose(predicted[0], points1, x0, x1, around, lambda found: rigid.off_line(*found.T))  # (N, 2)
        new1 = propose(predicted[1], points0, x1, x0, around, lambda found: rigid.off_line(*found.flip(1).T)).flip(1)
        old = pairs[kept]  # (e, 2)
        every = torch.cat([old, new0, new1])
        key, place = (every[:, 0] * len(x1) + every[:, 1]).unique(return_inverse=True)  # (E',)
        known = torch.full_like(key, -1)
        known[place[: len(old)]] = kept.nonzero()[:, 0]
        return torch.stack([key // len(x1), key % len(x1)], dim=1), known
