"""Where we win and lose: our method against the best of the others on the same features, measure by measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from linglue.evaluation.result import Result, Table
from linglue.evaluation.tasks.localization_scores import WITHIN, within_name

_STRICT = within_name(*WITHIN[0])


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
    """One row per measure and front-end: our value, the best of the others on the same features, and who is ahead.

    Args:
        results: by section; the group of a measure is the overall one, or the last.
    """
    rows = [row for measure in MEASURES if measure.section in results for row in _rows(measure, results)]
    return Table(("measure", "features", "linglue", "best other", "value", ""), tuple(rows), labels=2)


def _rows(measure: Measure, results: Mapping[str, Result]) -> Iterator[tuple[str, ...]]:
    summary = results[measure.section].summary
    methods = summary.get("overall") or list(summary.values())[-1]
    values = {name: value for name, v in methods.items() if (value := measure.value(v)) is not None}
    sign = -1 if measure.lower else 1
    for ours in (name for name in values if name.endswith(":linglue")):
        features = ours.partition(":")[0]
        theirs = (n for n in values if not n.startswith(f"{features}:linglue"))  # ours with another head is no other
        others = {n: values[n] for n in theirs if n.startswith(f"{features}:") or n == "colmap"}
        if not others:
            continue
        best = max(others, key=lambda name: sign * others[name])
        gap = sign * (values[ours] - others[best])
        verdict = "ahead" if gap > 0 else "behind" if gap < 0 else "equal"
        shown = (
            f"{values[ours]:.{measure.digits}f}",
            best.removeprefix(f"{features}:"),
            f"{others[best]:.{measure.digits}f}",
        )
        yield (f"{measure.section}: {measure.name}", features, *shown, verdict)
