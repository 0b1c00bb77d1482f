"""Train the front-end linpoint on folders of images, as a TOML file says; killed runs resume where they were."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.training.config import read_toml
from linglue.training.front_end.config import FrontEndConfig
from linglue.training.front_end.trainer import train_features


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run, e.g. configs/linpoint.toml")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    config = read_toml(options.config, FrontEndConfig)
    common.check_folder(config.output)
    report = common.Report(options.json)
    weights = train_features(config)
    report.line(f"weights: {weights}", weights=str(weights))
    log = config.output / "log.csv"
    report.line(f"log: {log}, plot: {config.output / 'log.png'}", log=str(log))
    report.finish()
