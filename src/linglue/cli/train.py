"""Train a network on a folder of images, as a TOML file says; killed runs are resumed."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.training.config import read_config
from linglue.training.run import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue train`."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run, e.g. configs/small.toml")
    common.add_engine(parser, workers="data.workers of CONFIG", ship_images=False)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue train` was asked for, and report it."""
    config = read_config(options.config)
    common.check_folder(config.output)
    report = common.Report(options.json)
    weights = train(config, common.engine(options, "cpu", config.data.workers))
    report.line(f"weights: {weights}", weights=str(weights))
    report.line(
        f"log: {config.output / 'log.csv'}, plot: {config.output / 'log.png'}", log=str(config.output / "log.csv")
    )
    report.finish()
