"""Where we win and lose, measure by measure.

Each front-end's `linglue` is compared with the best of the others on the same features, and what users get by default
with the best of all others on whatever features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from linglue.evaluation.result import Result, Table
from linglue.evaluation.tasks.localization_scores import WITHIN, within_name
from linglue.features import DEFAULT_FEATURES

ANY = "any"  # in the column of features: the default against all others
_STRICT = within_name(*WITHIN[0])
_OURS = ("linglue", "linglue-full", "linglue-fast", "linglue-paper")


@dataclass(frozen=True)
class Measure:
    """One number of a result by which methods are ranked.

    Args:
        section: of the suite.
        name: for people.
        path: the keys that lead to the number in the values of a method; a run may lack it.
        factor: from the number to what is shown.
        lower: whether less is better.
        digits: shown.

    Example:
        >>> Measure("pose", "AUC@5°, %", ("auc", "5"), 100).value({"auc": {"5": 0.5}})
        50.0
    """

    section: str
    name: str
    path: tuple[str, ...]
    factor: float = 1
    lower: bool = False
    digits: int = 1

    def value(self, values: Mapping[str, Any]) -> float | None:
        """The number as it is shown, of the values of a method; None where there is none."""
        found: Any = values
        for key in self.path:
            found = None if found is None else found.get(key)
        return None if found is None else self.factor * found


MEASURES = (
    Measure("homography", "MMA@3, %", ("mma", "3"), 100),
    Measure("homography", "AUC@5, %", ("auc", "poselib", "5"), 100),
    Measure("homography", "correct matches", ("correct",), digits=0),
    Measure("pose", "AUC@5°, %", ("auc", "5"), 100),
    Measure("pose", "precision, %", ("precision",), 100),
    Measure("pose", "correct matches", ("correct",), digits=0),
    Measure("scenes", "AUC@5°, %", ("auc", "5"), 100),
    Measure("scenes", "AUC@10°, %", ("auc", "10"), 100),
    Measure("scenes", "precision, %", ("precision",), 100),
    Measure("scenes", "correct matches", ("correct",), digits=0),
    Measure("planes", "AUC@10, %", ("auc", "poselib", "10"), 100),
    Measure("reconstruction", "points", ("points",), digits=0),
    Measure("reconstruction", "camera error, mm", ("mean_position_error",), 1000, lower=True, digits=2),
    Measure("localization", f"within {_STRICT}, %", ("within", _STRICT), 100),
    Measure("localization", "inliers", ("inliers",), digits=0),
    Measure("pose", "ms per pair", ("seconds",), 1000, lower=True, digits=0),
)


def standings(results: Mapping[str, Result]) -> Table:
    """One row per measure and front-end: our value, the best of the others, and who is ahead.

    Args:
        results: by section; a measure has rows for each scene where there is no group of all.
    """
    rows = [row for measure in MEASURES if measure.section in results for row in _rows(measure, results)]
    return Table(("measure", "features", "linglue", "best other", "value", ""), tuple(rows), labels=2)


def _rows(measure: Measure, results: Mapping[str, Result]) -> Iterator[tuple[str, ...]]:
    summary = results[measure.section].summary
    whole = next((name for name in ("overall", "all") if name in summary), None)
    for group in summary if whole is None else [whole]:
        title = f"{measure.section}{f' {group}' if whole is None and len(summary) > 1 else ''}: {measure.name}"
        values = {name: v for name, found in summary[group].items() if (v := measure.value(found)) is not None}
        for ours in (name for name in values if name.endswith(":linglue")):
            features, _, _ = ours.partition(":")
            others = {n: v for n, v in values.items() if n.rpartition(":")[2].partition("/")[0] not in _OURS}
            same = {n: v for n, v in others.items() if n.startswith(f"{features}:") or n == "colmap"}
            short = {n.removeprefix(f"{features}:"): v for n, v in same.items()}
            for kind, rivals in ((features, short), *([(ANY, others)] if features == DEFAULT_FEATURES else [])):
                if rivals:
                    yield (title, kind, *_compared(measure, values[ours], rivals))


def _compared(measure: Measure, ours: float, others: Mapping[str, float]) -> tuple[str, ...]:
    """Our value, the best of the others and its value, and who is ahead."""
    sign = -1 if measure.lower else 1
    best = max(others, key=lambda name: sign * others[name])
    shown, theirs = (f"{value:.{measure.digits}f}" for value in (ours, others[best]))
    gap = sign * (float(shown) - float(theirs))  # what rounds to the same is equal
    return shown, best, theirs, "ahead" if gap > 0 else "behind" if gap < 0 else "equal"
