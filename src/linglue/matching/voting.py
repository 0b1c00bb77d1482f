"""Learned consensus: keypoints around a candidate match vote on it, and a small network learns whom to believe.

For two images: candidates (pairs that are similar seen from either image) → a state each, from how distinctive it is →
rounds in which the matches around it vote, each with how well it fits the candidate as a similarity transform and with
a weight of its own state, and in which a similarity fitted to those voters predicts where the partner should be → a
logit each → probabilities over the candidates of a keypoint and "no partner".

There are three looks. The first has mutual nearest neighbours as voters. The others, with the same weights, have the
winners of the look before, new candidates where their votes predict a partner that descriptors alone did not propose,
and the epipolar geometry and the homography that the winners follow as evidence.

Time is linear in the number of keypoints once candidates are known; no array of N × M exists. Both images play the same
part, so swapping them swaps the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor, nn

from linglue.errors import LinGlueError
from linglue.matching.candidates import (
    LEAD,
    SIDE,
    Candidates,
    among_best,
    describe_candidates,
    find_candidates,
    propose,
    similarities,
    tree_of,
)
from linglue.matching.local_motion import LOCAL, against_motion, local_motions
from linglue.matching.motion import (
    EDGE,
    GEOMETRY,
    WHOLE,
    Rigid,
    Side,
    Surroundings,
    chunks,
    ends_of,
    whole_motion,
)
from linglue.matching.nearest import linear, nearest_k
from linglue.matching.neighborhood import Keypoints
from linglue.matching.together import together

CHOICE = 3  # numbers that a look knows from the one before: the logit, whether there was one, and whether it won
PRIOR = CHOICE + GEOMETRY  # and what the geometry of the winners says
UNLIKELY = 0.02  # winners of a look that score less do not count for the geometry
POWERS = (1, 2, 4)  # of scores, whose sums tell related images from unrelated ones: many matches, and sure ones
PACE = 10.0  # by how much faster than others the weights of these sums learn: few pairs are unrelated
MIN_SCORE = 0.5  # for pose estimation
MOST = 256  # of anything in a VotingConfig
KEPT = 1 << 14  # candidates whose fits are remembered from round to round; of more they are computed again


@dataclass(frozen=True)
class VotingConfig:
    """The shape of the network."""

    candidates: int = 5  # a candidate is among that many most similar ones, seen from either image
    near: int = 9  # voters next to a keypoint
    far: int = 4  # nearest of the surest voters: they are further away, and see repeated structure from outside it
    sure: int = 8  # one of so many voters is among the surest
    width: int = 32  # numbers in the state of a candidate
    kernels: int = 16  # ways a voter can fit, each with a weight of its own for a voter
    looks: int = 3  # at least 2
    rounds: int = 2  # of each look
    around: int = 12  # keypoints around a predicted place, of which the most similar becomes a candidate
    kept: int = 2  # candidates of a keypoint that the next look sees again

    def __post_init__(self) -> None:
        """Files may say anything."""
        for name, value in asdict(self).items():
            least = 2 if name == "looks" else 1
            if not isinstance(value, int) or not least <= value <= MOST:
                raise LinGlueError(f"{name} of the learned consensus is {value!r}, expected {least} to {MOST}")


@dataclass(frozen=True, eq=False)
class Scored:
    """What the network says of the candidates."""

    logits: list[Tensor]  # (E,) per round
    candidates: Candidates
    pair: nn.Linear | None = None  # log(1 + sums of powers of scores) → logit that the images show the same thing
    calibration: Tensor | None = None  # (2,) slope and offset: logit of a score → logit that the match is right

    def log_probabilities(self, number: int = -1) -> tuple[Tensor, Tensor]:
        """(E,) log-probability that the candidate is the partner, seen from image 0 and from image 1."""
        logit = self.logits[number]

        def seen_from(side: int) -> Tensor:
            owner = self.candidates.pairs[:, side]
            return logit - log_partition(logit, owner, self.candidates.counts[side])[owner]

        from0, from1 = together(seen_from, (0, 1))
        return from0, from1

    @cached_property
    def scores(self) -> Tensor:
        """(E,) geometric mean of the probabilities from both sides, as if the images showed the same thing."""
        from0, from1 = self.log_probabilities()
        return ((from0 + from1) / 2).exp().detach()

    @cached_property
    def related(self) -> Tensor:
        """() logit that the images show the same thing at all, from all scores together."""
        if self.pair is None:
            return self.logits[-1].new_tensor(torch.inf)
        return PACE * self.pair(torch.stack([self.scores.pow(power).sum() for power in POWERS]).log1p())[0]

    @cached_property
    def winners(self) -> Tensor:
        """(K,) candidates that have the best score of both their keypoints; best first."""
        sides = zip(self.candidates.pairs.unbind(1), self.candidates.counts, strict=True)
        best = together(lambda side: among_best(side[0], self.scores, 1, side[1]), sides)
        chosen = (best[0] & best[1]).nonzero()[:, 0]
        return chosen[self.scores[chosen].argsort(descending=True, stable=True)]

    @cached_property
    def probabilities(self) -> Tensor:
        """(K,) of the winners: that the images show the same thing, times that the match is right then."""
        scores = self.scores[self.winners]
        if self.calibration is not None:
            scores = (scores.logit(1e-6) * self.calibration[0] + self.calibration[1]).sigmoid()
        return scores * self.related.sigmoid()


def log_partition(logits: Tensor, owner: Tensor, count: int) -> Tensor:
    """(count,) log(1 + Σ exp(logit)) over the candidates (E,) of each owner; the 1 is "no partner"."""
    top = logits.new_zeros(count).scatter_reduce(0, owner, logits.detach(), "amax")  # at least 0
    total = torch.zeros_like(top).index_add(0, owner, (logits - top[owner]).exp())
    return top + (total + (-top).exp()).log()


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
        self.looks = nn.ModuleList(_Look(self.config) for _ in range(2))  # the first, and all others
        self.pair = nn.Linear(len(POWERS), 1)
        nn.init.constant_(self.pair.weight, 1 / PACE)  # as likely as not at 20 matches, before it is trained
        nn.init.constant_(self.pair.bias, -9 / PACE)
        self.calibration: Tensor
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))

    def forward(self, view0: Keypoints, view1: Keypoints, x0: Tensor, x1: Tensor) -> list[Scored]:
        """What each look says.

        Args:
            view0: where the keypoints of image 0 are.
            view1: the same for image 1.
            x0: (N, C) descriptors of image 0, of unit length.
            x1: (M, C) descriptors of image 1.
        """
        return list(self.looking(view0, view1, x0, x1))

    def looking(self, view0: Keypoints, view1: Keypoints, x0: Tensor, x1: Tensor) -> Iterator[Scored]:
        """What each look says, one after the other: who has seen enough does not ask for the next one.

        Args:
            view0: as for `forward`, like the others.
            view1: of image 1.
            x0: (N, C) of unit length.
            x1: (M, C) of image 1.
        """
        there, back = nearest_k(x0, x1, self.config.candidates)
        candidates = find_candidates(there, back)
        prior = x0.new_zeros(len(candidates.pairs), PRIOR)  # (E, PRIOR)
        trust = candidates.sides[0][:, LEAD] + candidates.sides[1][:, LEAD]  # (E,)
        logits, predicted = self.looks[0](view0, view1, candidates, candidates.mutual, trust, prior)
        last = Scored(logits, candidates, self.pair, self.calibration)
        yield last
        trees = together(lambda view: tree_of(view.points / view.size.max()), (view0, view1))
        for _ in range(1, self.config.looks):
            if predicted is None:
                return
            likely = last.winners[last.scores[last.winners] > UNLIKELY]  # (K,)
            rigid = Rigid(view0, view1, last.candidates.pairs[likely])
            pairs, known = self._next_pairs(last, predicted, rigid, trees, x0, x1)
            candidates = describe_candidates(pairs, similarities(x0, x1, pairs), there, back)
            prior, winners = self._prior(last, known)
            prior[:, CHOICE:] = rigid.describe(pairs)
            trust = last.scores[known]  # (E',) of winners, which are known
            logits, predicted = self.looks[1](view0, view1, candidates, winners, trust, prior)
            last = Scored(logits, candidates, self.pair, self.calibration)
            yield last

    @torch.no_grad()
    def _next_pairs(
        self, last: Scored, predicted: list[Tensor], rigid: Rigid, trees: list[cKDTree], x0: Tensor, x1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pairs (E', 2) for the next look, and (E',) which candidates of the last they are, −1 for new ones."""
        pairs, counts, around = last.candidates.pairs, last.candidates.counts, self.config.around
        kept0, kept1 = together(
            lambda side: among_best(pairs[:, side], last.scores, self.config.kept, counts[side]), (0, 1)
        )
        kept = kept0 | kept1  # (E,)
        ways = (
            (predicted[0], trees[1], x0, x1, around, rigid.off_line),
            (predicted[1], trees[0], x1, x0, around, lambda own, others: rigid.off_line(others, own)),
        )
        there, back = together(lambda way: propose(*way), ways)  # (N, 2), (M, 2)
        old = pairs[kept]  # (e, 2)
        every = torch.cat([old, there, back.flip(1)])
        key, place = (every[:, 0] * len(x1) + every[:, 1]).unique(return_inverse=True)  # (E',)
        known = torch.full_like(key, -1)
        known[place[: len(old)]] = kept.nonzero()[:, 0]
        return torch.stack([key // len(x1), key % len(x1)], dim=1), known

    @staticmethod
    def _prior(last: Scored, known: Tensor) -> tuple[Tensor, Tensor]:
        """What the last look said of each pair (E', PRIOR), and which of them are its winners (E',)."""
        logit, old = last.logits[-1].detach(), known >= 0
        wins = torch.zeros_like(logit, dtype=torch.bool)
        wins[last.winners] = True
        prior = logit.new_zeros(len(known), PRIOR)
        prior[:, 0] = torch.where(old, logit[known].clamp(-8, 8) / 4, 0)
        prior[:, 1] = old.float()
        winners = old & wins[known]
        prior[:, 2] = winners.float()
        return prior, winners


class Dense(nn.Linear):
    """The same as torch's own, faster without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """x (N, D) → (N, C)."""
        return linear(x, self.weight, self.bias)


class _Look(nn.Module):
    """Candidates and voters in, logits after every round and predicted places out."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.similarity = nn.Linear(1 + PRIOR, w)
        self.side = nn.Sequential(nn.Linear(SIDE, w), nn.ReLU(inplace=True), Dense(w, w))
        self.start = nn.Sequential(nn.LayerNorm(w), Dense(w, w), nn.ReLU(inplace=True), Dense(w, w))
        self.fits = nn.Sequential(
            nn.Linear(EDGE, config.kernels), nn.ReLU(), nn.Linear(config.kernels, config.kernels), nn.ReLU()
        )
        self.rounds = nn.ModuleList(_Round(config) for _ in range(config.rounds))

    def forward(
        self, view0: Keypoints, view1: Keypoints, candidates: Candidates, votes: Tensor, trust: Tensor, prior: Tensor
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Logits of the candidates, of which `votes` (E,) have a vote, the surest those of most trust (E,).

        After each round; and where voters predict the partners to be.
        """
        c = self.config
        own = torch.cat([candidates.similarity[:, None], prior], dim=1)  # (E, 1 + PRIOR)
        start = [own.new_zeros(0, c.width)]
        start += together(
            lambda part: self._start(own[part], *(side[part] for side in candidates.sides)), chunks(len(own))
        )
        state = torch.cat(start)  # (E, W)
        voters = votes.nonzero()[:, 0]  # (V,)
        if not len(voters):  # nobody votes where there is nothing to choose from
            return [state[:, 0]] * len(self.rounds), None
        scene = ends_of([view0, view1], candidates.pairs)
        sure = trust[voters].argsort(descending=True, stable=True)[: len(voters) // c.sure + c.far]  # (S,)
        ways = (view0, view1, candidates.pairs), (view1, view0, candidates.pairs.flip(1))
        sides = together(lambda way: self._side(Surroundings(*way, voters, sure, c.near + 1, c.far)), ways)
        logits, predicted = [], []
        for layer in self.rounds:
            state, logit, predicted = layer(state, voters, sides, scene)
            logits.append(logit)
        return logits, predicted

    def _start(self, own: Tensor, side0: Tensor, side1: Tensor) -> Tensor:
        """(c, W) states of candidates from their descriptors alone."""
        return self.start(self.similarity(own) + self.side(side0) + self.side(side1))

    def _side(self, around: Surroundings) -> Side:
        """Which voters each keypoint of an image has, and how they fit its candidates."""
        first, second = (cast(nn.Linear, self.fits[k]) for k in (0, 2))
        # Columns of what the features do not know, like their scale, would be multiplied by zeros.
        columns = slice(None) if len(around.columns) == EDGE else around.columns
        weight = torch.cat([first.weight[:, columns], first.bias[:, None]], dim=1).T  # (columns + 1, kernels)

        def fits_of(part: slice) -> Tensor:
            edges = around.describe(part)  # (columns + 1, c, K)
            hidden = F.relu_(edges.flatten(1).T @ weight)  # (c·K, kernels)
            return linear(hidden, second.weight, second.bias, relu=True).view(*edges.shape[1:], -1)

        parts = chunks(len(around.owner))
        kept = [fits_of(part) for part in parts if part.start < KEPT or torch.is_grad_enabled()]
        return Side(around.owner, around.voters, around.ends, around.kernel, around.place, kept, fits_of)


class _Round(nn.Module):
    """Voters weigh in once; every candidate's state moves on."""

    def __init__(self, config: VotingConfig) -> None:
        super().__init__()
        w = config.width
        self.weights = nn.Linear(w, config.kernels)
        self.belief = nn.Linear(w, 1)
        self.votes = nn.Sequential(Dense(config.kernels + LOCAL + WHOLE, w), nn.ReLU(inplace=True))
        self.update = nn.Sequential(nn.LayerNorm(2 * w), Dense(2 * w, 2 * w), nn.ReLU(inplace=True), Dense(2 * w, w))
        self.logit = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 1))

    def forward(
        self, state: Tensor, voters: Tensor, sides: list[Side], scene: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """state (E, W), voters (V,) rows of it, scene (E, 4) → the next state, a logit (E,), predictions (N, 2)."""
        voices = state.index_select(0, voters)  # (V, W)
        # For the mean over the voters of a keypoint; the last voter is nobody.
        share = 1 / sides[0].voters.shape[1]
        weights = F.pad(self.weights(voices).sigmoid() * share, (0, 0, 0, 1))  # (V + 1, kernels)
        belief = self.belief(voices).sigmoid()[:, 0]  # (V,)
        whole = whole_motion(scene, voters, belief.detach())  # (E, WHOLE)

        motions = local_motions(sides, belief, voters)  # (N, 7), (M, 7)

        def move_on(part: slice) -> tuple[Tensor, Tensor]:
            heard, own = state.new_zeros(()), state[part]  # (c, W)
            for side, motion in zip(sides, motions, strict=True):
                fit = against_motion(side.place[part], motion.index_select(0, side.owner[part]))  # (c, LOCAL)
                vote = side.votes(part, weights)  # (c, kernels)
                heard = heard + self.votes(torch.cat([vote, fit, whole[part]], dim=1))  # (c, W)
            change = self.update(torch.cat([own, heard], dim=1))  # (c, W)
            moved = own + change if torch.is_grad_enabled() else own.add_(change)  # nobody reads the old state again
            return moved, self.logit(moved)[:, 0]

        moved, logits = zip(*together(move_on, chunks(len(state))), strict=True)
        state = torch.cat(moved) if torch.is_grad_enabled() else state
        return state, torch.cat(logits), [motion[:, :2] for motion in motions]


def best_matches(scored: Scored, least: float = MIN_SCORE) -> tuple[Tensor, Tensor]:
    """One-to-one matches (K, 2) and scores (K,), best first: mutual maxima of the score, at least `least`.

    A score is the probability that the match is right: that the images show the same thing, times that it is then.
    """
    keep = scored.probabilities >= least  # (K,)
    return scored.candidates.pairs[scored.winners[keep]], scored.probabilities[keep]
