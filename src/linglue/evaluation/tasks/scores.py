"""Are scores honest? How often matches of a score are right, and what unrelated images get.

A match is right if it is near its epipolar lines, as `evaluation.tasks.pose` counts it. Unrelated are images of
different scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.evaluation.methods import find_front_end_file
from linglue.evaluation.pose_scenes import PosePair, load_scene
from linglue.evaluation.result import Result, Table
from linglue.evaluation.settings import check_scene_names, common_settings
from linglue.evaluation.store import PROGRESS_DELAY
from linglue.evaluation.tasks.pose import CORRECT, REFERENCE_SIDE
from linglue.features import FRONT_ENDS
from linglue.geometry.epipolar import epipolar_distances, fundamental_matrix
from linglue.matcher import Matcher
from linglue.matching.match import MatchingConfig
from linglue.network.linglue import LinGlue
from linglue.network.weights import packaged_weights
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

    def row(self) -> dict[str, Any]:
        """The numbers of the tables, by name."""
        shares = {f"right_{k}": float(right.mean()) if len(right) else None for k, (_, right) in enumerate(self.bins())}
        return {
            "pairs": len(self.related),
            "matches": len(self.scores),
            "calibration_error": self.calibration_error,
            "unrelated_median": float(np.median(self.by_default)),
            "unrelated_most": int(self.by_default.max()),
            "separation": self.separation,
            **shares,
        }

    def bins(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores and rights by tenths of the score."""
        which = np.minimum((self.scores * BINS).astype(int), BINS - 1)
        return [(self.scores[which == k], self.right[which == k]) for k in range(BINS)]


def is_right(truth: PosePair, matches: Matches) -> np.ndarray:
    """(K,) bool: near their epipolar lines in both images."""
    off = epipolar_distances(fundamental_matrix(truth.view0, truth.view1), matches.points0, matches.points1)
    cameras = truth.view0.camera, truth.view1.camera
    return np.max([d * REFERENCE_SIDE / max(c.size) for d, c in zip(off, cameras, strict=True)], axis=0) <= CORRECT


def scored_front_ends() -> list[str]:
    """The front-ends whose packaged network has a learned consensus, and so scores that mean something."""
    paths = {name: packaged_weights(name) for name in FRONT_ENDS}
    return [name for name, path in paths.items() if path.is_file() and LinGlue.load(path).voting is not None]


def evaluate(
    scenes: Sequence[str | Path],
    front_ends: Sequence[str] = (),
    extract: ExtractConfig | None = None,
    *,
    unrelated: int = UNRELATED,
) -> Result:
    """Measure how honest the scores of matches are, and what images of different scenes get.

    Args:
        scenes: at least two folders for `evaluation.pose`.
        front_ends: whose packaged networks are measured; none: all that have a learned consensus.
        extract: number of keypoints and image size; None: 2048 keypoints, longer side 1024.
        unrelated: how many pairs across scenes are drawn.

    Returns:
        One row per front-end; a front-end whose own weights are not at hand is "no weights".

    Example:
        >>> evaluate(["scenes/bonsai", "scenes/counter"]).text()  # doctest: +SKIP
    """
    folders = [Path(scene) for scene in scenes]
    check_scene_names(folders)
    if len(folders) < 2:
        raise LinGlueError(f"{folders[0]}: the only scene, expected at least two, as unrelated images are of different")
    extract = extract or ExtractConfig(max_keypoints=2048, resize=1024)
    found: dict[str, FoundMatches] = {}
    missing: dict[str, str] = {}
    for name in front_ends or scored_front_ends():
        config = replace(extract, features=name, weights=find_front_end_file(name))
        try:
            config.extractor()
        except LinGlueError as error:
            missing[name] = str(error)
            continue
        found[name] = measure(folders, config, unrelated)
    rows = [{"front_end": name, **result.row()} for name, result in found.items()]
    note = (
        "a score is meant to be the probability that the match is right: how often it was, all matches counted; right "
        f"is at most {CORRECT:g} px from the epipolar lines; the calibration error is the mean difference between "
        f"score and share; unrelated are {unrelated} pairs of images of different scenes, matches at the default "
        f"score; at most {extract.max_keypoints} keypoints, longer side at most {extract.resize}"
    )
    settings = {**common_settings("scores", extract, {}), "scenes": [str(scene) for scene in folders]}
    summary = {"scores": {row["front_end"]: row for row in rows}}
    return Result("scores", summary, rows, "front_ends", tables(found), note, settings, len(rows), 0, missing)


def measure(scenes: Sequence[Path], extract: ExtractConfig, unrelated_pairs: int = UNRELATED) -> FoundMatches:
    """Match all pairs of scenes, and pairs across scenes, by the packaged network of a front-end.

    Args:
        scenes: folders for `evaluation.pose`.
        extract: which features, how many, from images of which size.
        unrelated_pairs: how many pairs across scenes are drawn.
    """
    truths = [truth for scene in scenes for truth in load_scene(scene)]
    matcher = Matcher.from_pretrained(extract.features, extract.weights, device=extract.device)
    every = Matcher(None, matcher.network, matcher.kind, extract.device, MatchingConfig(min_score=0.0), matcher.first)
    images = {path: t.scene or t.pair.group for t in truths for path in (t.pair.image0, t.pair.image1)}
    features = {path: matcher.extract(path, extract.max_keypoints, extract.resize) for path in images}
    scores, right, related = [], [], []
    for truth in progress(truths, desc=f"scores of {extract.features}", unit="pair", delay=PROGRESS_DELAY):
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
