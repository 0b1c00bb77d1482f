"""Learned consensus: keypoints around a candidate match vote on it, and a small network learns whom to believe.

For two images: candidates (pairs that are similar seen from either image) → a state each, from how distinctive it is →
rounds in which the matches around it vote, each with how well it fits the candidate as a similarity transform and with
a weight of its own state, and in which a similarity fitted to those voters predicts where the partner should be → a
logit each → probabilities over the candidates of a keypoint and "no partner".

There are two looks. The first has mutual nearest neighbours as voters. The second has the winners of the first, and new
candidates where their votes predict a partner that descriptors alone did not propose.

Time is linear in the number of keypoints once candidates are known; no array of N × M exists. Both images play the same
part, so swapping them swaps the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from linglue.matching.nearest import (
    SIDE,
    Candidates,
    among_best,
    describe_candidates,
    find_candidates,
    nearest_k,
    propose,
)
from linglue.matching.neighborhood import View

PRIOR = 3  # numbers that the second look knows from the first
EDGE = 13  # numbers that describe a voter as seen from a candidate
FIT = 9  # numbers that describe a candidate against the motion of its voters and of the whole image
TINY = 1e-6
MIN_SCORE = 0.01  # for pose estimation; 0.003 for many matches, 0.3 for sure ones


@dataclass(frozen=True)
class VotingConfig:
    """The shape of the network."""

    candidates: int = 5  # a candidate is among that many most similar ones, seen from either image
    near: int = 9  # voters next to a keypoint
    far: int = 4  # voters from further away, so that repeated structure is seen from outside it
    stride: int = 8  # every so many of the next nearest voters is a far one
    width: int = 32  # numbers in the state of a candidate
    kernels: int = 16  # ways a voter can fit, each with a weight of its own for a voter
    rounds: int = 2  # of each look
    around: int = 6  # keypoints around a predicted place, of which the most similar becomes a candidate
    kept: int = 2  # candidates of a keypoint that the second look sees again


@dataclass(frozen=True, eq=False)
class Scored:
    """What the network says of the candidates."""

    logits: list[Tensor]  # (E,) per round
    candidates: Candidates
    pair: nn.Linear | None = None  # log(1 + sum of the scores) → logit that the images show the same thing at all

    def log_probabilities(self, number: int = -1) -> tuple[Tensor, Tensor]:
        """(E,) log-probability that the candidate is the partner, seen from image 0 and from image 1."""
        logit = self.logits[number]
        found = []
        for side in (0, 1):
            owner = self.candidates.pairs[:, side]
            found.append(logit - log_partition(logit, owner, self.candidates.counts[side])[owner])
        return found[0], found[1]

    def scores(self) -> Tensor:
        """(E,) geometric mean of the probabilities from both sides, as if the images showed the same thing."""
        from0, from1 = self.log_probabilities()
        return ((from0 + from1) / 2).exp()

    def related(self) -> Tensor:
        """() logit that the images show the same thing at all, from all scores together."""
        if self.pair is None:
            return self.logits[-1].new_tensor(torch.inf)
        return self.pair(self.scores().sum().detach().log1p()[None])[0]


def log_partition(logits: Tensor, owner: Tensor, count: int) -> Tensor:
    """(count,) log(1 + Σ exp(logit)) over the candidates (E,) of each owner; the 1 is "no partner"."""
    top = logits.new_zeros(count).scatter_reduce(0, owner, logits.detach(), "amax")  # at least 0
    total = torch.zeros_like(top).index_add(0, owner, (logits - top[owner]).exp())
    return top + (total + (-top).exp()).log()


@dataclass(frozen=True, eq=False)
class _Side:
    """The voters of one image's keypoints, and what does not change from round to round."""

    owner: Tensor  # (E,) the candidate's keypoint in this image
    voters: Tensor  # (N, K) rows of the list of voters
    valid: Tensor  # (N, K) bool: is there such a voter, other than the keypoint's own match?
    offset: Tensor  # (N, K, 2) from the keypoint to the voter, in this image
    away: Tensor  # (N, K, 2) where the voter's partner is in the other image
    fits: Tensor  # (E, K, kernels) in which ways a voter fits the candidate
    kernel: Tensor  # (N, K) weight of a voter by its distance, 1 next to the keypoint
    place: Tensor  # (E, 2) the candidate's keypoint in the other image


class Voting(nn.Module):
    """The network: descriptors and places of keypoints in, scored candidates out.

    Example:
        >>> net = Voting()
        >>> looks = net(view0, view1, x0, x1)  # doctest: +SKIP
        >>> pairs, scores = best_matches(looks[-1])  # doctest: +SKIP
    """

    def __init__(self, config: VotingConfig | None = None) -> None:
        super().__init__()
        self.config = config or VotingConfig()
        self.looks = nn.ModuleList(_Look(self.config) for _ in range(2))
        self.pair = nn.Linear(1, 1)
        nn.init.constant_(self.pair.weight, 3.0)  # half as likely as not at a sum of 20 scores, before it is trained
        nn.init.constant_(self.pair.bias, -9.0)

    def forward(self, view0: View, view1: View, x0: Tensor, x1: Tensor) -> list[Scored]:
        """What both looks say.

        Args:
            view0: where the keypoints of image 0 are.
            view1: the same for image 1.
            x0: (N, C) descriptors of image 0, of unit length.
            x1: (M, C) descriptors of image 1.
        """
        there, back = nearest_k(x0, x1, self.config.candidates)
        candidates = find_candidates(there, back)
        prior = x0.new_zeros(len(candidates.pairs), PRIOR)  # (E, PRIOR)
        first, predicted = self.looks[0](view0, view1, candidates, candidates.mutual, prior)
        if predicted is None:
            return [first, replace(first, pair=self.pair)]
        pairs, known = self._second_pairs(first, predicted, view0, view1, x0, x1)
        similarity = (x0[pairs[:, 0]] * x1[pairs[:, 1]]).sum(1)  # (E',)
        candidates = describe_candidates(pairs, similarity, there, back)
        prior, winners = self._prior(first, known)
        second, _ = self.looks[1](view0, view1, candidates, winners, prior)
        return [first, replace(second, pair=self.pair)]

    @torch.no_grad()
    def _second_pairs(
        self, first: Scored, predicted: list[Tensor], view0: View, view1: View, x0: Tensor, x1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pairs (E', 2) for the second look, and (E',) which candidates of the first they are, −1 for new ones."""
        pairs, scores = first.candidates.pairs, first.scores()
        kept = torch.zeros_like(scores, dtype=torch.bool)
        for side in (0, 1):
            kept |= among_best(pairs[:, side], scores, self.config.kept)
        points0, points1 = (view.points / view.size.max() for view in (view0, view1))
        new0 = propose(predicted[0], points1, x0, x1, self.config.around)  # (N, 2)
        new1 = propose(predicted[1], points0, x1, x0, self.config.around).flip(1)  # (M, 2)
        old = pairs[kept]  # (e, 2)
        every = torch.cat([old, new0, new1])
        key, place = (every[:, 0] * len(x1) + every[:, 1]).unique(return_inverse=True)  # (E',)
        known = torch.full_like(key, -1)
        known[place[: len(old)]] = kept.nonzero()[:, 0]
        return torch.stack([key // len(x1), key % len(x1)], dim=1), known

    @staticmethod
    def _prior(first: Scored, known: Tensor) -> tuple[Tensor, Tensor]:
        """What the first look said of each pair (E', PRIOR), and which of them it chose (E',)."""
        logit, old = first.logits[-1].detach(), known >= 0
        wins = torch.zeros_like(logit, dtype=torch.bool)
        wins[_winners(first)] = True
        prior = logit.new_zeros(len(known), PRIOR)
        prior[:, 0] = torch.where(old, logit[known].clamp(-8, 8) / 4, 0)
        prior[:, 1] = old.float()
        winners = old & wins[known]
        prior[:, 2] = winners.float()
        return prior, winners


class _Look(nn.Module):
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
        self.rounds = nn.ModuleList(_Round(config) for _ in range(config.rounds))

    def forward(
        self, view0: View, view1: View, candidates: Candidates, votes: Tensor, prior: Tensor
    ) -> tuple[Scored, list[Tensor] | None]:
        """Logits of the candidates, of which `votes` (E,) have a vote; where voters predict the partners to be."""
        own = torch.cat([candidates.similarity[:, None], prior], dim=1)  # (E, 1 + PRIOR)
        state = self.start(self.similarity(own) + sum(self.side(s) for s in candidates.sides))  # (E, W)
        voters = votes.nonzero()[:, 0]  # (V,)
        if not len(voters):  # nobody votes where there is nothing to choose from
            return Scored([state[:, 0]] * len(self.rounds), candidates), None
        views = [view0, view1]
        scene = _scene(views, candidates.pairs)
        sides = [self._side(views[k], views[1 - k], candidates, voters, k) for k in (0, 1)]
        logits, predicted = [], []
        for layer in self.rounds:
            state, logit, predicted = layer(state, voters, sides, scene)
            logits.append(logit)
        return Scored(logits, candidates), predicted

    def _side(self, view: View, other: View, candidates: Candidates, voters: Tensor, side: int) -> _Side:
        """Which voters each keypoint of `view` has, and how they look from its candidates."""
        # Unit: the longer side of the image, so that sizes and resolutions do not matter.
        points, partners = view.points / view.size.max(), other.points / other.size.max()
        pairs = candidates.pairs if side == 0 else candidates.pairs.flip(1)  # (E, 2) this image's keypoint first
        source, target = pairs[voters].T  # (V,)
        chosen, valid = self._neighbours(points, points[source])  # (N, K)
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
        edges = _edges(offset, away_from, spacing, view, other, pairs, pairs[voters][chosen[owner]])
        fits = self.fits(edges)  # (E, K, kernels)
        return _Side(owner, chosen, valid, offset, away, fits, kernel, place)

    def _neighbours(self, points: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) the nearest and some farther of the places (V, 2) of every point (N, 2), and which exist."""
        c = self.config
        wanted = [*range(c.near + 1), *range(c.near + c.stride, c.near + 1 + c.stride * c.far, c.stride)]
        ranks = [r + 1 for r in wanted]  # scipy counts from 1
        distance, index = cKDTree(places.cpu().numpy()).query(points.cpu().numpy(), k=ranks)
        exists = torch.from_numpy(np.isfinite(distance)).to(points.device)
        found = torch.from_numpy(index).to(points.device)
        return torch.where(exists, found, 0), exists


class _Round(nn.Module):
    """Voters weigh in once; every candidate's state moves on."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__()
        w = config.width
        self.weights = nn.Linear(w, config.kernels)
        self.belief = nn.Linear(w, 1)
        self.votes = nn.Sequential(nn.Linear(config.kernels + FIT, w), nn.ReLU())
        self.update = nn.Sequential(nn.LayerNorm(2 * w), nn.Linear(2 * w, 2 * w), nn.ReLU(), nn.Linear(2 * w, w))
        self.logit = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 1))

    def forward(
        self, state: Tensor, voters: Tensor, sides: list[_Side], scene: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """state (E, W), voters (V,) rows of it, scene (E, 4) → the next state, a logit (E,), predictions (N, 2)."""
        voices = state[voters]  # (V, W)
        weights = self.weights(voices).sigmoid()  # (V, kernels)
        belief = self.belief(voices).sigmoid()[:, 0]  # (V,)
        whole = _whole(scene, voters, belief)  # (E, 3)
        heard, predicted = [], []
        for side in sides:
            weight = (weights[side.voters] * side.valid[..., None])[side.owner]  # (E, K, kernels)
            votes = (side.fits * weight).mean(1)  # (E, kernels)
            fit, place = _fit(side, belief, voters)
            predicted.append(place)
            heard.append(self.votes(torch.cat([votes, fit, whole], dim=1)))  # (E, W)
        state = state + self.update(torch.cat([state, heard[0] + heard[1]], dim=1))
        return state, self.logit(state)[:, 0], predicted


def _scene(views: list[View], pairs: Tensor) -> Tensor:
    """(E, 4) both ends of every candidate, in units of the longer sides."""
    return torch.cat([view.points[pairs[:, k]] / view.size.max() for k, view in enumerate(views)], dim=1)


def _whole(scene: Tensor, voters: Tensor, belief: Tensor) -> Tensor:
    """(E, 3) candidates against the motion of the whole image, as far as voters (V,) are believed (V,).

    Ends of matches lie near a hyperplane of the four coordinates for distant cameras (affine epipolar geometry), near
    a plane for flat scenes. So: distance along the two thinnest directions of the believed voters, and how thin.
    """
    weight = belief.detach() / (belief.detach().sum() + TINY)  # (V,)
    ends = scene[voters]  # (V, 4)
    centre = (weight[:, None] * ends).sum(0)  # (4,)
    spread = ends - centre
    covariance = (weight[:, None] * spread).T @ spread  # (4, 4)
    variance, axes = torch.linalg.eigh(covariance.double())  # ascending
    sigma = (variance.clamp(min=0) + 1e-5).sqrt().to(scene.dtype)  # (4,)
    along = ((scene - centre) @ axes[:, :2].to(scene.dtype)).abs() / sigma[:2]  # (E, 2)
    distance = (along + 0.05).log() / 3
    return torch.cat([distance, (sigma[0] / sigma[3]).log().expand(len(scene), 1) / 3], dim=1)


def _fit(side: _Side, belief: Tensor, voters: Tensor) -> tuple[Tensor, Tensor]:
    """The similarity transform that the voters of a keypoint follow, weighted by belief.

    Returns:
        (E, FIT − 3) the candidates against it, and (N, 2) where it takes the keypoints.
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


def _edges(u: Tensor, w: Tensor, spacing: Tensor, view: View, other: View, pairs: Tensor, voters: Tensor) -> Tensor:
    """(E, K, EDGE) how voters look from candidates: u (N, K, 2) to the voter, w (E, K, 2) to its partner.

    pairs (E, 2) and voters (E, K, 2) are keypoints of this and of the other image. Plane vectors are complex numbers
    here: w / u is by how much the step to the voter is scaled and rotated between the images.
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


def _winners(scored: Scored) -> Tensor:
    """(K,) candidates that have the best score of both their keypoints; best first."""
    scores, pairs = scored.scores().detach(), scored.candidates.pairs
    keep = torch.ones_like(scores, dtype=torch.bool)
    for side in (0, 1):
        keep = keep & among_best(pairs[:, side], scores, 1)
    chosen = keep.nonzero()[:, 0]
    return chosen[scores[chosen].argsort(descending=True, stable=True)]


def best_matches(scored: Scored, least: float = 0.0) -> tuple[Tensor, Tensor]:
    """One-to-one matches (K, 2) and scores (K,), best first: mutual maxima of the score, at least `least`.

    A score is the probability that the match is right: that the images show the same thing, times that it is then.
    """
    related = scored.related().sigmoid()
    chosen = _winners(scored)
    scores = scored.scores()[chosen] * related  # (K,)
    keep = scores >= least
    return scored.candidates.pairs[chosen[keep]], scores[keep]
