"""From new descriptors to matches: `MatchingConfig` and the order of the steps.

descriptors → candidates → learned consensus → one-to-one matches with scores, where the network comes with one; it may
also look at descriptors as they are first, and that is all where the result is sure (`match_if_settled`); else
descriptors → nearest neighbours → local affine filter → consensus → completion → one-to-one matches with scores
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from linglue.core.progress import Stopwatch
from linglue.errors import LinGlueError
from linglue.matching.baselines import mutual_matches
from linglue.matching.completion import CompletionConfig, complete
from linglue.matching.consensus import ConsensusConfig, drop_contradicted
from linglue.matching.effort import EFFORTS, LOOKS, look_until_settled
from linglue.matching.local_affine import FilterConfig, filtered_matches
from linglue.matching.motion import rank
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints
from linglue.matching.sinkhorn import transport_matches
from linglue.matching.together import team
from linglue.matching.voting import MIN_SCORE, Voting, best_matches


@dataclass(frozen=True)
class MatchingConfig:
    """How descriptors become matches. The default is LinGlue's own head, `paper()` exactly the paper's.

    Example:
        >>> MatchingConfig(min_score=0.5).min_score  # only what is more likely right than wrong
        0.5
        >>> MatchingConfig.paper().consensus is None
        True
    """

    learned: bool = True  # the learned consensus instead of filter, consensus and completion, where there is one
    filter: FilterConfig | None = field(default_factory=FilterConfig)  # None: plain mutual nearest neighbours
    consensus: ConsensusConfig | None = field(default_factory=ConsensusConfig)  # None: no vote; needs the filter
    completion: CompletionConfig | None = field(default_factory=CompletionConfig)  # None: no search; needs the filter
    min_score: float | None = None  # matches that score less are dropped; None: MIN_SCORE of the learned consensus,
    # nothing after the filter, which scores from 0.5 on, and its completion, which scores below
    effort: str = "adaptive"  # of the learned consensus and the network: what a pair needs, or "full" for every pair

    def __post_init__(self) -> None:
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise LinGlueError(f"min_score is {self.min_score}, expected a number from 0 to 1")
        if self.filter is None and (self.consensus or self.completion):
            raise LinGlueError("filter is None, expected consensus and completion to be None, too: they start from it")
        if self.effort not in EFFORTS:
            raise LinGlueError(f"effort is {self.effort!r}, expected {' or '.join(EFFORTS)}")

    @classmethod
    def paper(cls) -> MatchingConfig:
        """The head of the paper: neighborhoods of 2 R, the filter with AdaLAM's constants, and nothing after it.

        Returns:
            A configuration without learned consensus, consensus and completion.

        Example:
            >>> MatchingConfig.paper().learned
            False
        """
        return cls(learned=False, filter=FilterConfig.paper(), consensus=None, completion=None)

    @classmethod
    def unfiltered(cls) -> MatchingConfig:
        """Mutual nearest neighbours of the new descriptors: the network alone.

        Returns:
            A configuration without filter and all that follows it.

        Example:
            >>> MatchingConfig.unfiltered().filter is None
            True
        """
        return cls(learned=False, filter=None, consensus=None, completion=None)

    def settings(self) -> dict[str, Any]:
        """All values as JSON, for fingerprints and reports.

        Returns:
            JSON values by name.

        Example:
            >>> MatchingConfig.unfiltered().settings()["learned"]
            False
        """
        return asdict(self)


@torch.no_grad()
def match_descriptors(
    view0: Keypoints,
    view1: Keypoints,
    x0: Tensor,
    x1: Tensor,
    config: MatchingConfig,
    dustbin: Tensor | None = None,
    voting: Voting | None = None,
    watch: Stopwatch | None = None,
) -> tuple[Tensor, Tensor]:
    """One-to-one matches between the keypoints of two images, best first.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        x0: (N, C) descriptors of image 0, as the network gives them.
        x1: (M, C) descriptors of image 1.
        config: which steps, and their constants.
        dustbin: () learned score of the dustbin. If given, optimal transport takes the place of all other steps.
        voting: the learned consensus that was trained with the network, used if `config.learned`.
        watch: takes the seconds of every step.

    Returns:
        pairs (K, 2) of indices into the keypoints, and scores (K,) in [0, 1].
    """

    watch = watch or Stopwatch(x0.device)
    # Coordinates and distances need all their digits.
    with torch.autocast(x0.device.type, enabled=False), team(x0.device):
        if voting is not None and config.learned and dustbin is None:
            with watch.stage("consensus"):
                return _vote(view0, view1, x0, x1, config, voting)[:2]
        pairs, scores = _match(view0, view1, x0, x1, config, dustbin, watch)
    keep = scores >= (config.min_score or 0.0)  # (K,)
    return pairs[keep], scores[keep]


@torch.no_grad()
def match_if_settled(
    view0: Keypoints, view1: Keypoints, x0: Tensor, x1: Tensor, config: MatchingConfig, voting: Voting
) -> tuple[Tensor, Tensor] | None:
    """The matches of a pair that is easy or clearly unrelated, None of one that needs more.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        x0: (N, C) descriptors of image 0, of unit length.
        x1: (M, C) descriptors of image 1.
        config: whose effort is adaptive.
        voting: the learned consensus for these descriptors, of which a few looks are taken.

    Returns:
        pairs (K, 2) of indices into the keypoints, and scores (K,) in [0, 1]; or None.
    """
    with torch.autocast(x0.device.type, enabled=False), team(x0.device):
        pairs, scores, settled = _vote(view0, view1, x0, x1, config, voting, first=True)
    return (pairs, scores) if settled else None


def _vote(
    view0: Keypoints,
    view1: Keypoints,
    x0: Tensor,
    x1: Tensor,
    config: MatchingConfig,
    voting: Voting,
    first: bool = False,
) -> tuple[Tensor, Tensor, bool]:
    """What the learned consensus finds, in the few looks of a first pass or in all, and whether that settles the pair.

    The images are put in order, so that rounding is the same, too, whichever of them comes first.
    """
    if rank(view0) > rank(view1):
        pairs, scores, settled = _vote(view1, view0, x1, x0, config, voting, first)
        return pairs.flip(1), scores, settled
    taken = islice(voting.looking(view0, view1, x0, x1), LOOKS if first else None)
    if config.effort == "adaptive":
        last, settled = look_until_settled(taken, patient=not first)
    else:
        *_, last = taken
        settled = True
    return *best_matches(last, MIN_SCORE if config.min_score is None else config.min_score), settled


def _match(
    view0: Keypoints,
    view1: Keypoints,
    x0: Tensor,
    x1: Tensor,
    config: MatchingConfig,
    dustbin: Tensor | None,
    watch: Stopwatch,
) -> tuple[Tensor, Tensor]:
    """The steps in their order."""
    if dustbin is not None:
        with watch.stage("matching"):
            return transport_matches(x0, x1, dustbin)
    with watch.stage("matching"):
        nearest0, nearest1 = nearest_both_ways(x0, x1)
    if config.filter is None:
        return mutual_matches(nearest0, nearest1)
    with watch.stage("filter"):
        accepted = filtered_matches(view0, view1, nearest0, nearest1, config.filter)
        if config.consensus is not None:
            accepted = drop_contradicted(view0, view1, accepted, config.consensus)
    if config.completion is None:
        return accepted.pairs, accepted.confidence
    with watch.stage("completion"):
        return complete(view0, view1, x0, x1, accepted, config.completion)
