"""Planar scenes with known homographies: data in the HPatches layout, the D2-Net protocol, homography AUC.

A data set is a folder of sequences: `v_*` (viewpoint changes) and `i_*` (illumination), each with images 1, 2, … and
`H_1_k`, the homography from image 1 to image k. Points, errors and thresholds are in pixels of the original images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.engine import Engine
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import HOMOGRAPHY_ESTIMATORS, RobustSettings, check_estimators, version
from linglue.evaluation.methods import Methods, Prepared, prepare
from linglue.evaluation.metrics import auc, share_within
from linglue.evaluation.result import Result, Table, pair_columns, percent, relative
from linglue.evaluation.settings import TIME_NOTE, check_scene_names, common_settings, extraction_note, robust_note
from linglue.evaluation.store import PROGRESS_DELAY, Pair, Prediction, predict
from linglue.geometry.homography import corner_error, reprojection_errors
from linglue.io.images import IMAGE_SUFFIXES
from linglue.sfm.extract import ExtractConfig

# Left out by D2-Net, and so by everyone since, as their images are too large for some methods.
EXCLUDED = frozenset(
    {
        "i_contruction",
        "i_crownnight",
        "i_dc",
        "i_pencils",
        "i_whitebuilding",
        "v_artisans",
        "v_astronautis",
        "v_talent",
    }
)
SPLITS = {"i": "illumination", "v": "viewpoint"}
THRESHOLDS = tuple(range(1, 11))  # pixels, for the mean matching accuracy
CORRECT = 3  # pixels up to which a match counts as correct
AUC_THRESHOLDS = (1, 3, 5, 10)  # pixels of mean corner error
SHOWN = (1, 3, 5, 10)  # columns of the table


@dataclass(frozen=True, eq=False)
class HomographyPair:
    """Two images of a plane, and where its points go."""

    pair: Pair
    split: str  # "illumination" or "viewpoint"
    homography_1_from_0: NDArray[np.float64]  # (3, 3)


@dataclass(frozen=True)
class HomographyScore:
    """How good one method is on one pair."""

    pair: str
    split: str
    keypoints: tuple[int, int]
    matches: int
    correct: int  # at most CORRECT pixels off
    accuracy: tuple[float, ...]  # share of matches at most THRESHOLDS pixels off; 0 without matches
    corner_errors: Mapping[str, float]  # pixels, per estimator; infinite where it fails
    seconds: float
    data: str = ""  # name of the data set, where there are several


def load_pairs(data: Path) -> tuple[list[HomographyPair], list[str]]:
    """The pairs 1-k of all sequences in the folder, and the names of the sequences left out by the protocol.

    Args:
        data: folder in the HPatches layout.
    """
    if not data.is_dir():
        raise LinGlueError(f"{data}: no such folder, expected a data set in the HPatches layout")
    sequences = sorted(p for p in data.iterdir() if p.is_dir() and p.name[:2] in ("v_", "i_"))
    if not sequences:
        raise LinGlueError(f"{data}: holds no sequence, expected folders named v_* and i_*")
    skipped = [p.name for p in sequences if p.name in EXCLUDED]
    pairs = [pair for folder in sequences if folder.name not in EXCLUDED for pair in _sequence(folder)]
    if not pairs:
        raise LinGlueError(f"{data}: all its sequences ({', '.join(skipped)}) are left out by the protocol")
    return pairs, skipped


def _sequence(folder: Path) -> list[HomographyPair]:
    images: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in IMAGE_SUFFIXES and path.stem.isdigit():
            number = int(path.stem)
            if number in images:
                raise LinGlueError(f"{path}: image {number} is there twice, the other is {images[number].name}")
            images[number] = path
    truths = {int(m[1]): p for p in folder.iterdir() if (m := re.fullmatch(r"H_1_(\d+)(\.txt)?", p.name))}
    if 1 not in images:
        raise LinGlueError(f"{folder}: image 1 is missing, expected images 1, 2, … and H_1_2, …")
    others = sorted((images.keys() | truths.keys()) - {1})
    if not others:
        raise LinGlueError(f"{folder}: holds only image 1, expected images 1, 2, … and H_1_2, …")
    pairs = []
    for number in others:
        if number not in images:
            raise LinGlueError(f"{folder}: image {number} is missing, there is {truths[number].name}")
        if number not in truths:
            raise LinGlueError(f"{folder}: H_1_{number} is missing, there is image {images[number].name}")
        homography = read_homography(truths[number])
        pairs.append(HomographyPair(Pair(folder.name, images[1], images[number]), SPLITS[folder.name[0]], homography))
    return pairs


def read_homography(path: Path) -> NDArray[np.float64]:
    """(3, 3) from a text file of nine numbers.

    Args:
        path: of the file.
    """
    try:
        values = np.array(path.read_text(encoding="utf-8").split(), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{path}: not a text file of numbers, expected the 9 of a homography") from error
    if values.size != 9 or not np.isfinite(values).all():
        raise LinGlueError(f"{path}: holds {values.size} numbers, expected the 9 finite ones of a homography")
    homography = values.reshape(3, 3)
    if abs(np.linalg.det(homography)) < 1e-12:
        raise LinGlueError(f"{path}: the homography is singular, expected one that can be inverted")
    return homography


def score_pair(
    truth: HomographyPair, prediction: Prediction, estimators: Sequence[str], robust: RobustSettings
) -> HomographyScore:
    """One-way reprojection of image 0's points, thresholds inclusive.

    Args:
        truth: the pair and its homography.
        prediction: of one method.
        estimators: names of robust estimators.
        robust: their threshold and seed.
    """
    errors = reprojection_errors(truth.homography_1_from_0, prediction.points0, prediction.points1)
    corners = {}
    for name in estimators:
        estimate = HOMOGRAPHY_ESTIMATORS[name](prediction.points0, prediction.points1, robust)
        corners[name] = corner_error(estimate, truth.homography_1_from_0, prediction.image_size0)
    return HomographyScore(
        truth.pair.name,
        truth.split,
        prediction.keypoints,
        len(errors),
        int((errors <= CORRECT).sum()),
        tuple(share_within(errors, THRESHOLDS)),
        corners,
        prediction.seconds,
    )


def evaluate(
    data: str | Path | Sequence[str | Path],
    methods: Methods,
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    estimators: Sequence[str] = tuple(HOMOGRAPHY_ESTIMATORS),
    threshold: float = 3.0,
    seed: int = 0,
    engine: Engine | None = None,
) -> Result:
    """Measure matchers on planar scenes: matching accuracy (D2-Net protocol) and homography AUC.

    Args:
        data: folder of sequences v_* and i_* in the HPatches layout, or several of them.
        methods: matchers by name, or configurations (see `evaluation.methods.prepare`).
        work: folder where features and matches are kept; what is there is not made again.
        extract: how features are taken; None: the default front-end, 2048 keypoints, longer side 1024.
        estimators: robust estimators for the AUC.
        threshold: inlier threshold of the estimators, original pixels.
        seed: of the estimators.
        engine: where images are extracted and pairs matched; None: in this process.

    Returns:
        One row per method and pair; tables of accuracy and AUC per split.

    Example:
        >>> print(evaluate("hpatches", ["mnn", "linglue"], "work").text())  # doctest: +SKIP
    """
    folders = [Path(data)] if isinstance(data, str | Path) else [Path(folder) for folder in data]
    work, extract = Path(work), extract or ExtractConfig(max_keypoints=2048, resize=1024)
    check_estimators(list(estimators))
    check_scene_names(folders)
    robust = RobustSettings(threshold, seed)
    loaded = {folder: load_pairs(folder) for folder in folders}
    prepared = prepare(methods, extract)
    truths = {folder.resolve().name if len(folders) > 1 else "": pairs for folder, (pairs, _) in loaded.items()}
    made, scores = _score_all(truths, work, prepared, estimators, robust, engine)
    summary, rows = summarise(scores), csv_rows(scores)
    skipped = [name for _, names in loaded.values() for name in names]
    settings = {
        **common_settings("homography", extract, prepared.settings, robust),
        "data": [str(folder) for folder in folders],
        "skipped_sequences": skipped,
        "estimators": {name: version(name) for name in estimators},
        "pixels": "original images",
        "correct": f"reprojection error <= {CORRECT} px",
    }
    used = ", ".join(f"{name} ({package})" for name, package in settings["estimators"].items()) or "none"
    note = (
        f"{extraction_note(prepared, extract, summary['overall'])}; errors in original pixels, correct: at most "
        f"{CORRECT} px; homographies by {used}, {robust_note(robust)}; {len(skipped)} sequences left out by the "
        f"protocol\n{TIME_NOTE}"
    )
    return Result(
        "homography", summary, rows, "pairs", tables(summary), note, settings, made, len(rows) - made, prepared.missing
    )


def _score_all(
    truths: Mapping[str, Sequence[HomographyPair]],
    work: Path,
    prepared: Prepared,
    estimators: Sequence[str],
    robust: RobustSettings,
    engine: Engine | None,
) -> tuple[int, dict[str, list[HomographyScore]]]:
    """How many predictions were made, and the scores by method; `truths` by the name of the data set."""
    made = 0
    scores: dict[str, list[HomographyScore]] = {name: [] for name in prepared.ready}
    groups = list(dict.fromkeys((data, truth.pair.group) for data, pairs in truths.items() for truth in pairs))
    for data, sequence in progress(groups, desc="homography", unit="sequence", delay=PROGRESS_DELAY):
        chosen = [truth for truth in truths[data] if truth.pair.group == sequence]
        new, predictions = predict(work / data, [truth.pair for truth in chosen], prepared, engine)
        made += new
        for name, found in predictions.items():
            for truth, prediction in zip(chosen, found, strict=True):
                scores[name].append(replace(score_pair(truth, prediction, estimators, robust), data=data))
    return made, scores


def summarise(scores: Mapping[str, Sequence[HomographyScore]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per split (overall, data sets if several, illumination, viewpoint) and method: means over pairs.

    `mma` and all counts are means over pairs; `inlier_ratio` is the share of correct matches among all matches of all
    pairs; `auc` holds per estimator the AUC at AUC_THRESHOLDS; `seconds` is the median.

    Args:
        scores: by method.
    """
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    data = sorted({s.data for pairs in scores.values() for s in pairs} - {""})
    for split in ("overall", *data, *SPLITS.values()):
        for method, all_pairs in scores.items():
            pairs = [s for s in all_pairs if split in ("overall", s.split, s.data)]
            if pairs:
                summary.setdefault(split, {})[method] = _mean(pairs)
    return summary


def _mean(pairs: Sequence[HomographyScore]) -> dict[str, Any]:
    accuracy = np.mean([s.accuracy for s in pairs], axis=0)
    matches = sum(s.matches for s in pairs)
    return {
        "pairs": len(pairs),
        "keypoints": float(np.mean([s.keypoints for s in pairs])),
        "matches": matches / len(pairs),
        "correct": float(np.mean([s.correct for s in pairs])),
        "inlier_ratio": sum(s.correct for s in pairs) / max(1, matches),
        "mma": dict(zip(map(str, THRESHOLDS), accuracy.tolist(), strict=True)),
        "auc": {
            name: dict(
                zip(map(str, AUC_THRESHOLDS), auc([s.corner_errors[name] for s in pairs], AUC_THRESHOLDS), strict=True)
            )
            for name in pairs[0].corner_errors
        },
        "seconds": float(np.median([s.seconds for s in pairs])),
    }


def tables(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    """Matching accuracy, and homography AUC of every estimator; in percent where not counts.

    Args:
        summary: of `summarise`.
    """
    base = summary["overall"].get("mnn", {}).get("seconds")
    accuracy, areas = [], []
    estimators: list[str] = []
    splits = list(summary)[:1] if len(summary) == 2 else list(summary)  # one kind of change: the same pairs twice
    for split, methods in ((split, summary[split]) for split in splits):
        for method, values in methods.items():
            accuracy.append(
                (
                    split,
                    method,
                    f"{values['matches']:.0f}",
                    f"{values['correct']:.0f}",
                    percent(values["inlier_ratio"]),
                    *(percent(values["mma"][str(t)]) for t in SHOWN),
                    relative(values["seconds"], base),
                )
            )
            estimators = list(values["auc"])
            cells = [percent(values["auc"][name][str(t)]) for name in estimators for t in AUC_THRESHOLDS]
            areas.append((split, method, *cells))
    header = (
        "split",
        "method",
        "matches",
        f"correct@{CORRECT}",
        "inliers %",
        *(f"MMA@{t}" for t in SHOWN),
        "time/mnn" if base else "ms",
    )
    found = [Table(header, tuple(accuracy), labels=2)]
    if estimators:
        columns = tuple(f"{name} @{t}" if t == 1 else f"@{t}" for name in estimators for t in AUC_THRESHOLDS)
        found.append(Table(("split", "homography AUC", *columns), tuple(areas), labels=2))
    return found


def csv_rows(scores: Mapping[str, Sequence[HomographyScore]]) -> list[dict[str, Any]]:
    """One row per method and pair.

    Args:
        scores: by method.
    """
    return [
        {
            **pair_columns(method, s),
            "split": s.split,
            "data": s.data,
            **{f"accuracy@{t}": round(a, 6) for t, a in zip(THRESHOLDS, s.accuracy, strict=True)},
            **{f"corner_error {name}": error for name, error in s.corner_errors.items()},
        }
        for method, pairs in scores.items()
        for s in pairs
    ]
