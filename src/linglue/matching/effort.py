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
NEARLY = 0.4  # of the sure matches that are asked for: with fewer the second look does not settle a pair,
HARDLY = 1.5  # nor with more expected ones than so many times those of unrelated images


def is_sure(scored: Scored, part: float = 1.0) -> bool:
    """Whether there are so many sure matches that further looks, or a network, would add little that matters.

    Args:
        scored: a look.
        part: of the sure matches that are asked for.
    """
    sure = int((scored.probabilities >= CONFIDENT).sum())
    return sure >= part * max(FEWEST, SHARE * min(scored.candidates.counts))


def is_unrelated(scored: Scored, times: float = 1.0) -> bool:
    """Whether so few matches are to be expected that the images have nothing in common.

    Args:
        scored: a look.
        times: as many as unrelated images may have at most.
    """
    return float(scored.scores.sum()) <= times * UNRELATED * min(scored.candidates.counts)


def is_promising(scored: Scored) -> bool:
    """Whether the next look may settle the pair: this one is not far from doing so, one way or the other."""
    return is_sure(scored, NEARLY) or is_unrelated(scored, HARDLY)


def look_until_settled(looks: Iterator[Scored], patient: bool = True) -> tuple[Scored, bool]:
    """The look that settles a pair, the last one to be taken; or the last there is, which does not.

    Args:
        looks: of the learned consensus, at least one.
        patient: all of them where that is what it takes; else only while they are promising, as there is a network.

    Returns:
        the look, and whether it settles the pair.
    """
    for number, scored in enumerate(looks, 1):
        # The first look finds next to nothing in some hard pairs that the second, or the network, finds matches in.
        if number >= LOOKS and (is_unrelated(scored) or is_sure(scored)):
            return scored, True
        if not patient and not is_promising(scored):
            break
    return scored, False
