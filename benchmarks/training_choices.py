"""Presets and losses compared: short trainings that differ in nothing else, on the same pairs.

    python benchmarks/training_choices.py IMAGES -o WORK [--features NAME] [--extractor-weights FILE] [--steps N]

Prints what mutual nearest neighbours of the networks' descriptors find on held-out images. A killed run resumes.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

from linglue.training.config import DataConfig, NetworkConfig, OptimiserConfig, RunConfig
from linglue.training.data import prepare_data
from linglue.training.trainer import Trainer

# name, preset, loss
CHOICES = (
    ("linear, InfoNCE", "linear", "contrastive"),
    ("pair, InfoNCE", "pair", "contrastive"),
    ("geo, InfoNCE", "geo", "contrastive"),
    ("geo, hinge", "geo", "hinge"),
    ("geo, the paper's ranking loss", "geo", "ranking"),
)


def last_rows(log: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The first and the last row of a training's log."""
    with log.open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return rows[0], rows[-1]


def line(name: str, row: dict[str, float]) -> str:
    cells = [f"{100 * row[f'{kind}/{score}']:.1f}" for kind in KINDS for score in SCORES]
    return f"| {name} | {' | '.join(cells)} |"


KINDS = ("homography", "parallax")
SCORES = ("recall", "average_precision", "recall_at_precision")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, metavar="IMAGES")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="WORK")
    parser.add_argument("--features", default="sift")
    parser.add_argument("--extractor-weights", type=Path, metavar="FILE")
    parser.add_argument("--pairs", type=int, default=1200)
    parser.add_argument("--validation-pairs", type=int, default=60)
    parser.add_argument("--longer-side", type=int, default=1024, help="of the largest images made")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    data = DataConfig(
        images=options.images,
        features=options.features,
        extractor_weights=options.extractor_weights,
        pairs=options.pairs,
        validation_pairs=options.validation_pairs,
        longer_side=options.longer_side,
        workers=1,
    )
    steps = OptimiserConfig(steps=options.steps, batch=options.batch, rate=2.5e-3, decay=0.99, warmup=20, average=0.97)
    base = RunConfig(output=options.output, validate_every=options.steps, checkpoint_every=20, data=data)
    pairs, validation = prepare_data(base)
    print(f"| network | {' | '.join(f'{kind}: {score}' for kind in KINDS for score in SCORES).replace('_', ' ')} |")
    print(f"|---|{'---:|' * len(KINDS) * len(SCORES)}")
    for number, (name, preset, loss) in enumerate(CHOICES):
        folder = options.output / f"{preset}-{loss}"
        config = replace(base, output=folder, network=NetworkConfig(preset), optimiser=replace(steps, loss=loss))
        Trainer(config, pairs, validation).run()  # a finished one ends at once
        first, last = last_rows(folder / "log.csv")
        if number == 0:
            print(line("identity start (raw descriptors)", first))
        print(line(name, last), flush=True)
    print(
        f"\nPercent; {options.features}, {options.steps} steps of {options.batch} pairs from the identity start, "
        f"1024 keypoints, {len(validation['homography'])} validation pairs of each kind. Recall at 90 % precision last."
    )


if __name__ == "__main__":
    main()
