"""The curves of docs/training.md: how our own models learned, drawn from the logs of their runs.

python benchmarks/training_curves.py [--add MODEL LOG]

docs/training/MODEL.csv has a row per validation: the steps of all runs one after the other, and what each scored. With
`--add` the log.csv of a finished run is put behind what is there, its steps counted from the last one on.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from linglue.training.log import read_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHOWN = ("recall", "average_precision", "precision", "repeatability")  # what a curve is drawn of


def add(model: str, log: Path) -> None:
    """Put the validations of a run behind those of the runs before it.

    Args:
        model: names the file in docs/training.
        log: log.csv of the run.
    """
    path = DOCS / "training" / f"{model}.csv"
    before = read_rows(path)
    start = before[-1]["step"] if before else 0.0
    rows = [
        {"step": start + row["step"]} | {k: round(v, 4) for k, v in row.items() if k.rpartition("/")[2] in SHOWN}
        for row in read_rows(log)
        if row["step"] > 0 or not before
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(before + rows)


def draw(picture: Path) -> None:
    """All models side by side."""
    from matplotlib.figure import Figure

    logs = sorted((DOCS / "training").glob("*.csv"))
    figure = Figure(figsize=(4 * len(logs), 3.6), layout="constrained")
    for axes, log in zip(figure.subplots(1, len(logs), squeeze=False)[0], logs, strict=True):
        rows = read_rows(log)
        for name in (n for n in rows[0] if n != "step"):
            source, _, score = name.rpartition("/")
            if score == "average_precision" or source == "validation":
                label = score if source == "validation" else f"{source}: average precision"
                axes.plot([r["step"] for r in rows], [r[name] for r in rows], marker=".", label=label)
        axes.set(title=log.stem, xlabel="step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Add a log if one is given, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs=2, metavar=("MODEL", "LOG"))
    options = parser.parse_args()
    if options.add:
        add(options.add[0], Path(options.add[1]))
    draw(DOCS / "images" / "training.png")


if __name__ == "__main__":
    main()
