"""Which pairs of a large collection of images show the same thing, by the packaged matcher: worth a teacher's time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linglue.matcher import Matcher
from linglue.sfm.retrieval import Retrieval

PARTNERS = 12  # images most alike, of each
KEYPOINTS = 768
LONGER_SIDE = 640
LEAST = 0.5  # pair score


def likely_pairs(images: Path, names: Sequence[str], most: int, seed: int = 0) -> list[tuple[int, int]]:
    """At most `most` pairs (i < j) of images that the packaged matcher finds related, at random, sorted.

    Args:
        images: folder of the images.
        names: of the images below it.
        most: pairs.
        seed: of the choice, where there are more.
    """
    matcher = Matcher.from_pretrained()
    features = {name: matcher.extract(images / name, KEYPOINTS, LONGER_SIDE) for name in names}
    numbers = {name: number for number, name in enumerate(names)}
    found = [
        (numbers[a], numbers[b])
        for a, b in Retrieval.build(names, features.__getitem__, seed=seed).pairs(PARTNERS)
        if matcher.match(features[a], features[b]).pair_score >= LEAST
    ]
    chosen = np.random.default_rng(seed).permutation(len(found))[:most]
    return sorted((min(found[k]), max(found[k])) for k in chosen)
