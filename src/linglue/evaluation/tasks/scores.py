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
from linglue.evaluation.methods import Method, find_front_end_file, prepare
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
MANY = 10  # matches: more of them, and unrelated images look related
PEERS = ("superpoint:superglue-10", "aliked:lightglue")  # what they find in unrelated images

Strangers = Sequence[tuple[Path, Path]]  # pairs of images of different scenes


@dataclass(frozen=True)
class ByDefault:
    """Matches of unrelated images at the default score.

    Example:
        >>> ByDefault(np.array([0, 12]), (("a/1", "b/1"), ("a/2", "b/1"))).row()
        {'unrelated_median': 6.0, 'unrelated_many': 1, 'unrelated_most': 12, 'unrelated_most_of': 'a/2 b/1'}
    """

    counts: np.ndarray  # (U,)
    names: tuple[tuple[str, str], ...]  # U, scene and image of both

    def row(self) -> dict[str, Any]:
        """The numbers of the table, by name."""
        most = int(self.counts.argmax())
        return {
            "unrelated_median": float(np.median(self.counts)),
            "unrelated_many": int((self.counts > MANY).sum()),
            "unrelated_most": int(self.counts[most]),
            "unrelated_most_of": " ".join(self.names[most]) if self.counts[most] else "",
        }


@dataclass(frozen=True)
class FoundMatches:
    """What one matcher found in all pairs."""

    scores: np.ndarray  # (K,) of all matches of related images
    right: np.ndarray  # (K,) bool
    related: np.ndarray  # (R,) pair scores
    unrelated: np.ndarray  # (U,)
    by_default: ByDefault

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
            **self.by_default.row(),
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
    peers: Sequence[str] = (),
) -> Result:
    """Measure how honest the scores of matches are, and what images of different scenes get.

    Args:
        scenes: at least two folders for `evaluation.pose`.
        front_ends: whose packaged networks are measured; none: all that have a learned consensus.
        extract: number of keypoints and image size; None: 2048 keypoints, longer side 1024.
        unrelated: how many pairs across scenes are drawn.
        peers: other methods that match the unrelated pairs, FRONT_END:MATCHER.

    Returns:
        One row per front-end; a front-end or peer whose own weights are not at hand is "no weights".

    Example:
        >>> evaluate(["scenes/bonsai", "scenes/counter"]).text()  # doctest: +SKIP
    """
    folders = [Path(scene) for scene in scenes]
    check_scene_names(folders)
    if len(folders) < 2:
        raise LinGlueError(f"{folders[0]}: the only scene, expected at least two, as unrelated images are of different")
    extract = extract or ExtractConfig(max_keypoints=2048, resize=1024)
    truths = [truth for folder in folders for truth in load_scene(folder)]
    strangers = draw_unrelated(truths, unrelated)
    found: dict[str, FoundMatches] = {}
    missing: dict[str, str] = {}
    for name in front_ends or scored_front_ends():
        config = replace(extract, features=name, weights=find_front_end_file(name))
        try:
            config.extractor()
        except LinGlueError as error:
            missing[name] = str(error)
            continue
        found[name] = measure(truths, strangers, config)
    others: dict[str, ByDefault] = {}
    if peers:
        prepared = prepare(peers, extract)
        others = {name: match_unrelated(strangers, method) for name, method in prepared.ready.items()}
        missing |= prepared.missing
    rows = [{"front_end": name, **result.row()} for name, result in found.items()]
    note = (
        "a score is meant to be the probability that the match is right: how often it was, all matches counted; right "
        f"is at most {CORRECT:g} px from the epipolar lines; the calibration error is the mean difference between "
        f"score and share; unrelated are {unrelated} pairs of images of different scenes, matches at the default "
        f"score, of peers at theirs; at most {extract.max_keypoints} keypoints, longer side at most {extract.resize}"
    )
    settings = {**common_settings("scores", extract, {}), "scenes": [str(scene) for scene in folders]}
    summary = {"scores": {row["front_end"]: row for row in rows}, "peers": {n: o.row() for n, o in others.items()}}
    shown = tables(found, others)
    return Result("scores", summary, rows, "front_ends", shown, note, settings, len(rows), 0, missing)


def draw_unrelated(truths: Sequence[PosePair], number: int) -> list[tuple[Path, Path]]:
    """Pairs of images of different scenes, the same ones every time.

    Args:
        truths: pairs of at least two scenes.
        number: how many pairs are drawn.
    """
    scenes = {path: t.scene or t.pair.group for t in truths for path in (t.pair.image0, t.pair.image1)}
    rng, names = np.random.default_rng(0), sorted(scenes)
    drawn: list[tuple[Path, Path]] = []
    while len(drawn) < number:
        image0, image1 = (names[k] for k in rng.integers(len(names), size=2))
        if scenes[image0] != scenes[image1]:
            drawn.append((image0, image1))
    return drawn


def match_unrelated(strangers: Strangers, method: Method) -> ByDefault:
    """What a peer finds in unrelated images.

    Args:
        strangers: pairs of images.
        method: its front-end and matcher.
    """
    extract, matcher = method.extract, method.matcher.build()
    extractor = extract.extractor()
    images = {path for pair in strangers for path in pair}
    features = {path: extractor.extract(path, extract.max_keypoints, extract.resize) for path in images}
    counts = [
        len(matcher.match(features[image0], features[image1]))
        for image0, image1 in progress(strangers, desc=method.matcher.name, unit="pair", delay=PROGRESS_DELAY)
    ]
    return _by_default(counts, strangers)


def _by_default(counts: Sequence[int], strangers: Strangers) -> ByDefault:
    shown = tuple((_shown(image0), _shown(image1)) for image0, image1 in strangers)
    return ByDefault(np.array(counts), shown)


def _shown(image: Path) -> str:
    return f"{image.parent.parent.name}/{image.name}"


def measure(truths: Sequence[PosePair], strangers: Strangers, extract: ExtractConfig) -> FoundMatches:
    """Match pairs of scenes, and pairs across scenes, by the packaged network of a front-end.

    Args:
        truths: pairs whose poses are known.
        strangers: pairs of unrelated images among those.
        extract: which features, how many, from images of which size.
    """
    matcher = Matcher.from_pretrained(extract.features, extract.weights, device=extract.device)
    every = Matcher(None, matcher.network, matcher.kind, extract.device, MatchingConfig(min_score=0.0), matcher.first)
    images = {path for t in truths for path in (t.pair.image0, t.pair.image1)}
    features = {path: matcher.extract(path, extract.max_keypoints, extract.resize) for path in images}
    scores, right, related = [], [], []
    for truth in progress(truths, desc=f"scores of {extract.features}", unit="pair", delay=PROGRESS_DELAY):
        found = every.match(features[truth.pair.image0], features[truth.pair.image1])
        scores.append(found.scores)
        right.append(is_right(truth, found))
        related.append(found.pair_score)
    unrelated: list[float] = []
    counts: list[int] = []
    for image0, image1 in strangers:
        found = matcher.match(features[image0], features[image1])
        unrelated.append(found.pair_score)
        counts.append(len(found))
    by_default = _by_default(counts, strangers)
    return FoundMatches(
        np.concatenate(scores), np.concatenate(right), np.array(related), np.array(unrelated), by_default
    )


def tables(found: Mapping[str, FoundMatches], peers: Mapping[str, ByDefault] | None = None) -> list[Table]:
    """How often matches of a score are right; what unrelated images get.

    Args:
        found: by our own front-ends.
        peers: what others find in unrelated images, by name.
    """
    reliability = [
        (
            name,
            *(f"{100 * right.mean():.0f}" if len(right) else "" for _, right in result.bins()),
            f"{result.calibration_error:.3f}",
        )
        for name, result in found.items()
    ]
    unrelated = [_unrelated_row(name, result.by_default, f"{result.separation:.4f}") for name, result in found.items()]
    unrelated += [_unrelated_row(name, result, "") for name, result in (peers or {}).items()]
    edges = [f"{k / BINS:.1f} – {(k + 1) / BINS:.1f}" for k in range(BINS)]
    head = ("unrelated images: matches", "median", "95 %", f"pairs with more than {MANY}", "most", "of")
    return [
        Table(("right % at score", *edges, "calibration error"), tuple(reliability)),
        Table((*head, "AUC of the pair score"), tuple(unrelated)),
    ]


def _unrelated_row(name: str, result: ByDefault, separation: str) -> tuple[str, ...]:
    row = result.row()
    shown = [f"{row[f'unrelated_{key}']}" for key in ("many", "most", "most_of")]
    return name, *(f"{np.percentile(result.counts, share):.0f}" for share in (50, 95)), *shown, separation
