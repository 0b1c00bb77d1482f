"""What an evaluation found: rows, summary, settings; as tables, JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tabulate import SEPARATING_LINE, tabulate

from linglue.core.atomic import atomic_path

Summary = Mapping[str, Mapping[str, Mapping[str, Any]]]  # per group (split or scene) and method: named values


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `labels` columns are names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1

    def text(self) -> str:
        """Columns aligned for a terminal: names to the left, numbers to the right.

        Args:
            markdown: for documents instead of a terminal.
        """
        lines: list[Any] = []
        for before, row in zip((None, *self.rows), self.rows, strict=False):
            if before is not None and self.labels > 1 and before[0] != row[0]:
                lines.append(SEPARATING_LINE)
            lines.append(row)
        return self._format(lines, "simple")

    def markdown(self) -> str:
        """A table for documents."""
        return self._format(list(self.rows), "pipe")

    def _format(self, rows: list[Any], style: str) -> str:
        align = ["left" if i < self.labels else "right" for i in range(len(self.header))]
        text: str = tabulate(rows, self.header, style, colalign=align, disable_numparse=True)
        return text


@dataclass(frozen=True)
class Result:
    """What one evaluation found.

    Example:
        >>> from linglue.evaluation import homography
        >>> result = homography("hpatches", ["mnn", "linglue"], "work")  # doctest: +SKIP
        >>> print(result.text())  # doctest: +SKIP
        >>> result.write("work")  # doctest: +SKIP
    """

    task: str
    summary: Summary
    rows: Sequence[Mapping[str, Any]]  # one per method and pair, image or camera
    row_kind: str  # "pairs", "images" or "cameras"
    tables: Sequence[Table]
    note: str  # how the tables came about
    settings: Mapping[str, Any]
    made: int  # predictions or models of this run
    kept: int  # those that were there already
    missing: Mapping[str, str] = field(default_factory=dict)  # methods without weights, and what they lack
    problems: Sequence[str] = ()  # one line each
    files: Mapping[str, Any] = field(default_factory=dict)  # written beside summary and rows

    def text(self, markdown: bool = False) -> str:
        """All tables and the note about them, for a terminal or for documents.

        Args:
            markdown: for documents instead of a terminal.
        """
        tables = [table.markdown() if markdown else table.text() for table in self.shown()]
        return "\n\n".join([*tables, self.note])

    def shown(self) -> list[Table]:
        """The tables, with a row "no weights" for each method that could not run."""
        return [_with_missing(table, self.missing) for table in self.tables]

    def json(self) -> dict[str, Any]:
        """All of it, with the rows; infinite numbers (failed estimates) are None, which every JSON reader takes."""
        content: dict[str, Any] = json_values(
            {
                "settings": self.settings,
                "results": self.summary,
                self.row_kind: self.rows,
                "missing": self.missing,
                "problems": list(self.problems),
            }
        )
        return content

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write summary.json and the rows as CSV.

        Args:
            folder: where to; it is made.

        Returns:
            The two files by what they hold.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = {"summary": folder / "summary.json", self.row_kind: folder / f"{self.row_kind}.csv"}
        write_json(files["summary"], self.json())
        write_csv(files[self.row_kind], self.rows)
        return files

    def save(self, path: Path) -> None:
        """Write all of it as one JSON file, for `Result.load`.

        Args:
            path: of the file; its folder is made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {**vars(self), "tables": [vars(table) for table in self.tables]}
        write_json(path, content)

    @classmethod
    def load(cls, path: Path) -> Result:
        """What `save` wrote.

        Args:
            path: of the file.
        """
        content = read_json(path)
        tables = [Table(tuple(t["header"]), tuple(map(tuple, t["rows"])), t["labels"]) for t in content.pop("tables")]
        return cls(**content, tables=tables)


def _with_missing(table: Table, missing: Mapping[str, str]) -> Table:
    """The table with a row for each method that could not run."""
    if table.labels < 2 or any("no weights" in row for row in table.rows):
        return table
    blank = ("",) * (len(table.header) - 3)
    return Table(table.header, (*table.rows, *(("", name, "no weights", *blank) for name in missing)), table.labels)


class PairValues(Protocol):
    """What the scores of a pair have in common, whatever was measured."""

    @property
    def pair(self) -> str:
        """Its name."""

    @property
    def keypoints(self) -> tuple[int, int]:
        """Numbers in the two images."""

    @property
    def matches(self) -> int:
        """How many."""

    @property
    def correct(self) -> int:
        """How many of them."""

    @property
    def seconds(self) -> float:
        """Of matching alone."""


def pair_columns(method: str, score: PairValues) -> dict[str, Any]:
    """The first columns of the row of a method and a pair.

    Args:
        method: its name.
        score: of the pair.
    """
    return {
        "method": method,
        "pair": score.pair,
        "keypoints0": score.keypoints[0],
        "keypoints1": score.keypoints[1],
        "matches": score.matches,
        "correct": score.correct,
        "seconds": round(score.seconds, 6),
    }


def percent(value: float) -> str:
    """0.8971 → "89.7".

    Args:
        value: a share.
    """
    return f"{100 * value:.1f}"


def relative(value: float, base: float | None) -> str:
    """A time as a multiple of the base's, or in milliseconds without one.

    Args:
        value: seconds.
        base: seconds of the method to compare with, if any.
    """
    return f"{1000 * value:.0f}" if not base else f"{value / base:.1f}"


def json_values(value: Any) -> Any:
    """`value` with None for every number that JSON cannot hold.

    Args:
        value: of mappings, sequences, numbers and texts.
    """
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON values; infinite numbers become null.

    Args:
        path: of the file.
        content: to write.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(json_values(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; null stays None.

    Args:
        path: of the file.
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row, columns in the order in which the rows first name them; empty where a row lacks one.

    Args:
        path: of the file.
        rows: values by column.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)
