"""Effort: when a pair has been looked at enough, so that easy pairs, and unrelated ones, cost less than hard ones."""

from __future__ import annotations

from collections.abc import Iterator

from linglue.matching.voting import Scored

EFFORTS = ("adaptive", "full")  # as much as a pair needs, or everything for every pair
LOOKS = 2  # of the first pass; a result is sure from this look on
CONFIDENT = 0.8  # probability from which on a match is a sure one
SHARE = 0.08  # of the keypoints of the image that has fewer: with so many sure matches the result is sure,
FEWEST = 150  # but not with fewer than these
UNRELATED = 0.005  # of these keypoints: where no more matches are to be expected, there are none


def is_sure(scored: Scored) -> bool:
    """Whether there are so many sure matches that further looks, or a network, would add little that matters."""
    sure = int((scored.probabilities >= CONFIDENT).sum())
    return sure >= max(FEWEST, SHARE * min(scored.candidates.counts))


def is_unrelated(scored: Scored) -> bool:
    """Whether so few matches are to be expected that the images have nothing in common."""
    return float(scored.scores.sum()) <= UNRELATED * min(scored.candidates.counts)


def look_until_settled(looks: Iterator[Scored]) -> tuple[Scored, bool]:
    """The look that settles a pair, the last one to be taken; or the last there is, which does not.

    Args:
        looks: of the learned consensus, at least one.

    Returns:
        the look, and whether it settles the pair.
    """
    for number, scored in enumerate(looks, 1):
        # The first look finds next to nothing in some hard pairs that the second, or the network, finds matches in.
        if number >= LOOKS and (is_unrelated(scored) or is_sure(scored)):
            return scored, True
    return scored, False
