"""Are scores honest? How often matches of a score are right, and what unrelated images get.

A match is right if it is near its epipolar lines, as `evaluation.tasks.pose` counts it. Unrelated are images of
different scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linglue.evaluation.pose_scenes import PosePair, load_scene
from linglue.evaluation.result import Table
from linglue.evaluation.tasks.pose import CORRECT, REFERENCE_SIDE
from linglue.geometry.epipolar import epipolar_distances, fundamental_matrix
from linglue.matcher import Matcher
from linglue.matching.match import MatchingConfig
from linglue.sfm.extract import ExtractConfig
from linglue.types import Matches

BINS = 10
UNRELATED = 200  # pairs


@dataclass(frozen=True)
class FoundMatches:
    """What one matcher found in all pairs."""

    scores: np.ndarray  # (K,) of all matches of related images
    right: np.ndarray  # (K,) bool
    related: np.ndarray  # (R,) pair scores
    unrelated: np.ndarray  # (U,)
    by_default: np.ndarray  # (U,) matches of unrelated images at the default score

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean distance between score and share that is right, over bins of scores."""
        total = 0.0
        for scores, right in self.bins():
            total += abs(scores.sum() - right.sum())
        return total / max(1, len(self.scores))

    @property
    def separation(self) -> float:
        """AUC of telling related from unrelated images by the pair score."""
        return float(
            (self.related[:, None] > self.unrelated).mean() + 0.5 * (self.related[:, None] == self.unrelated).mean()
        )

    def bins(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores and rights by tenths of the score."""
        which = np.minimum((self.scores * BINS).astype(int), BINS - 1)
        return [(self.scores[which == k], self.right[which == k]) for k in range(BINS)]


def is_right(truth: PosePair, matches: Matches) -> np.ndarray:
    """(K,) bool: near their epipolar lines in both images."""
    off = epipolar_distances(fundamental_matrix(truth.view0, truth.view1), matches.points0, matches.points1)
    cameras = truth.view0.camera, truth.view1.camera
    return np.max([d * REFERENCE_SIDE / max(c.size) for d, c in zip(off, cameras, strict=True)], axis=0) <= CORRECT


def measure(scenes: Sequence[Path], extract: ExtractConfig, unrelated_pairs: int = UNRELATED) -> FoundMatches:
    """Match all pairs of scenes, and pairs across scenes, by the packaged network of a front-end.

    Args:
        scenes: folders for `evaluation.pose`.
        extract: which features, how many, from images of which size.
        unrelated_pairs: how many pairs across scenes are drawn.
    """
    truths = [truth for scene in scenes for truth in load_scene(scene)]
    matcher = Matcher.from_pretrained(extract.features)
    every = Matcher(matcher.extractor, matcher.network, matcher.kind, matching=MatchingConfig(min_score=0.0))
    images = {path: t.scene or t.pair.group for t in truths for path in (t.pair.image0, t.pair.image1)}
    features = {path: matcher.extract(path, extract.max_keypoints, extract.resize) for path in images}
    scores, right, related = [], [], []
    for truth in truths:
        found = every.match(features[truth.pair.image0], features[truth.pair.image1])
        scores.append(found.scores)
        right.append(is_right(truth, found))
        related.append(found.pair_score)
    rng, names = np.random.default_rng(0), sorted(images)
    unrelated: list[float] = []
    by_default: list[int] = []
    while len(unrelated) < unrelated_pairs:
        image0, image1 = (names[k] for k in rng.integers(len(names), size=2))
        if images[image0] != images[image1]:
            found = matcher.match(features[image0], features[image1])
            unrelated.append(found.pair_score)
            by_default.append(len(found))
    return FoundMatches(
        np.concatenate(scores), np.concatenate(right), np.array(related), np.array(unrelated), np.array(by_default)
    )


def tables(found: Mapping[str, FoundMatches]) -> list[Table]:
    """How often matches of a score are right; what unrelated images get."""
    reliability = [
        (
            name,
            *(f"{100 * right.mean():.0f}" if len(right) else "" for _, right in result.bins()),
            f"{result.calibration_error:.3f}",
        )
        for name, result in found.items()
    ]
    unrelated = [
        (
            name,
            f"{np.median(result.by_default):.0f}",
            f"{np.percentile(result.by_default, 95):.0f}",
            f"{result.by_default.max()}",
            f"{result.separation:.4f}",
        )
        for name, result in found.items()
    ]
    edges = [f"{k / BINS:.1f} – {(k + 1) / BINS:.1f}" for k in range(BINS)]
    return [
        Table(("right % at score", *edges, "calibration error"), tuple(reliability)),
        Table(("unrelated images: matches", "median", "95 %", "most", "AUC of the pair score"), tuple(unrelated)),
    ]
