"""The diary of a run: a CSV line per validation, and a plot of it."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError

_BEGIN = b"step,"  # of every log of ours


def check_output(folder: Path, weights: Path, checkpoint: Path) -> None:
    """Refuse a folder in which files of others have the names of ours, before anything is made.

    Args:
        folder: the run's output.
        weights: where its weights will be.
        checkpoint: where its checkpoint is, if it began before.
    """
    log, picture = folder / "log.csv", folder / "log.png"
    begun = checkpoint.is_file() or (log.is_file() and log.read_bytes().startswith(_BEGIN))
    for path in (log, picture, weights):
        if not begun and os.path.lexists(path):
            raise LinGlueError(f"{path}: was not made by this training, expected another output")


def log_row(folder: Path, row: Mapping[str, float]) -> None:
    """Add a line to the log of a run (log.csv) and draw its curves anew (log.png).

    Args:
        folder: the run's output.
        row: values by name, `step` among them; validation scores have a "/" in their names.
    """
    append_row(folder / "log.csv", row)
    plot(folder / "log.csv", folder / "log.png")


def append_row(path: Path, row: Mapping[str, float]) -> None:
    """Add a line; rows of a later step than this one, left by a run that was killed, are dropped.

    Args:
        path: the CSV file.
        row: values by name, `step` among them.
    """
    rows = [r for r in read_rows(path) if r["step"] < row["step"]] + [dict(row)]
    with atomic_path(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, float]]:
    """The lines of a log, oldest first; none if there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def plot(csv_path: Path, picture: Path) -> None:
    """Loss and validation scores over steps.

    Args:
        csv_path: the log.
        picture: written, .png.
    """
    from matplotlib.figure import Figure

    rows = read_rows(csv_path)
    steps = [r["step"] for r in rows]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(steps, [r["loss"] for r in rows], color="black")
    left.set(xlabel="step", ylabel="training loss")
    for name in rows[0]:
        if "/" in name:
            right.plot(steps, [r[name] for r in rows], label=name)
    right.set(xlabel="step", ylabel="validation")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    with atomic_path(picture) as partial:
        figure.savefig(partial, dpi=110)
