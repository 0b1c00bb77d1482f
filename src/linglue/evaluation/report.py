"""Results for people and machines: aligned or markdown tables, JSON, CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linglue.core.atomic import atomic_path


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `labels` columns are names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1

    def text(self) -> str:
        """Columns aligned for a terminal: names to the left, numbers to the right."""
        widths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        rule = "  ".join("-" * width for width in widths)
        lines = [self._line(self.header, widths), rule]
        for before, row in zip((None, *self.rows), self.rows, strict=False):
            if before is not None and self.labels > 1 and before[0] != row[0]:
                lines.append("")
            lines.append(self._line(row, widths))
        return "\n".join(lines)

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = [
            cell.ljust(width) if i < self.labels else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    def markdown(self) -> str:
        """A table for documents."""
        rule = ["---" if i < self.labels else "---:" for i in range(len(self.header))]
        return "\n".join("| " + " | ".join(row) + " |" for row in (self.header, rule, *self.rows))


def percent(value: float) -> str:
    """0.8971 → "89.7"."""
    return f"{100 * value:.1f}"


def relative(value: float, base: float | None) -> str:
    """A time as a multiple of the base's, or in milliseconds without one."""
    return f"{1000 * value:.0f}" if not base else f"{value / base:.1f}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Infinite numbers (failed estimates) become null, which every JSON reader takes."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(json_values(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def json_values(value: Any) -> Any:
    """`value` with null for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row, columns in the order of the first row's keys."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
