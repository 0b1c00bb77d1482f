"""What a reconstruction leaves to read: summary.json for machines, lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.sfm.sparse_model import ModelStatistics

NAMES_SHOWN = 5


@dataclass(frozen=True)
class Summary:
    """Everything that is told about a reconstruction.

    Example:
        >>> print(*read_summary(Path("WORK/summary.json")).lines(), sep="\\n")  # doctest: +SKIP
    """

    model: ModelStatistics
    matched_pairs: int  # that were matched
    verified_pairs: int  # of which geometry could be verified
    unregistered: tuple[str, ...]  # images without a pose
    smaller_models: tuple[int, ...]  # images of each model beside the one that was kept
    seconds: Mapping[str, float]  # per stage, in order
    settings: Mapping[str, Any]
    problems: tuple[str, ...] = ()  # one line each
    notes: tuple[str, ...] = ()  # nothing is wrong, but users should know
    reasons: Mapping[str, str] = field(default_factory=dict)  # why an image has no pose

    def lines(self) -> list[str]:
        """For people, one line per fact."""
        model = self.model
        told = [
            f"{model.registered} of {model.images} images registered, {model.points} points",
            f"track length {model.track_length:.2f}, reprojection error {model.reprojection_error:.3f} px, "
            f"{model.observations_per_image:.0f} observations per image",
            f"{self.verified_pairs} of {self.matched_pairs} matched pairs verified",
        ]
        if self.unregistered:
            more = len(self.unregistered) - NAMES_SHOWN
            names = ", ".join(self.unregistered[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
            told.append(f"without a pose: {names}")
        if self.smaller_models:
            sizes = ", ".join(str(size) for size in self.smaller_models)
            told.append(f"{len(self.smaller_models)} smaller models left out ({sizes} images)")
        if self.seconds:
            told.append("seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in self.seconds.items()))
        told += [f"note: {note}" for note in self.notes]
        return told + [f"problem: {problem}" for problem in self.problems]


def write_summary(path: Path, summary: Summary) -> None:
    """Write a summary as JSON; the file appears whole.

    Args:
        path: the file.
        summary: of a reconstruction.
    """
    text = json.dumps(asdict(summary), indent=1, ensure_ascii=False, default=str)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_summary(path: Path) -> Summary:
    """Read what `write_summary` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["model"] = ModelStatistics(**content["model"])
        for name in ("unregistered", "smaller_models", "problems", "notes"):
            content[name] = tuple(content[name])
        return Summary(**content)
    except FileNotFoundError as error:
        raise LinGlueError(f"{path}: no such summary") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LinGlueError(f"{path}: damaged, expected the summary of a reconstruction") from error
