"""The curves of docs/training.md: how our own models learned, drawn from the logs of their runs.

python benchmarks/training_curves.py [--add MODEL LOG]

docs/training/MODEL.csv has a row per validation: the steps of all runs one after the other, and what each scored. With
`--add` the log.csv of a finished run is put behind what is there, its steps counted from the last one on. Runs may have
different validation pairs, so a line ends where its run does.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from linglue.training.log import read_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHOWN = ("recall", "average_precision", "precision", "repeatability")  # what a curve is drawn of
COLUMNS = 4  # models side by side


def add(model: str, log: Path) -> None:
    """Put the validations of a run behind those of the runs before it.

    Args:
        model: names the file in docs/training.
        log: log.csv of the run.
    """
    path = DOCS / "training" / f"{model}.csv"
    before = read_rows(path)
    start, run = (before[-1]["step"], before[-1]["run"] + 1) if before else (0.0, 1.0)
    rows = []
    for row in read_rows(log):
        scores = {name: round(value, 4) for name, value in row.items() if name.rpartition("/")[2] in SHOWN}
        rows.append({"run": run, "step": start + row["step"], **scores})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(before + rows)


def draw(picture: Path) -> None:
    """All models, some side by side."""
    from matplotlib.figure import Figure

    logs = sorted((DOCS / "training").glob("*.csv"))
    lines = -(-len(logs) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 3.6 * lines), layout="constrained")
    places = figure.subplots(lines, COLUMNS, squeeze=False).flatten()
    for axes in places[len(logs) :]:
        axes.axis("off")
    for axes, log in zip(places, logs, strict=False):
        rows = read_rows(log)
        names = [n for n in rows[0] if n.endswith("/average_precision") or n.startswith("validation/")]
        names = names or [n for n in rows[0] if n.endswith("/recall")]  # a network alone ranks nothing
        for number, name in enumerate(names):
            source, _, score = name.rpartition("/")
            label = score if source == "validation" else f"{source}: {score.replace('_', ' ')}"
            for run in sorted({row["run"] for row in rows}):
                part = [row for row in rows if row["run"] == run]
                shown = {"label": label} if run == rows[0]["run"] else {}
                axes.plot([r["step"] for r in part], [r[name] for r in part], f"C{number}.-", **shown)
        axes.set(title=log.stem, xlabel="step")
        axes.locator_params(axis="x", nbins=5)
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
