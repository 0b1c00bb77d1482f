"""Options that mean the same in every command, and the two ways to report: lines for people, JSON for machines."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.matcher import MAX_KEYPOINTS, RESIZE, Matcher


def add_front_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--features", choices=list(FRONT_ENDS), default="sift", help="front-end")
    parser.add_argument(
        "--extractor-weights", type=Path, metavar="FILE", help="weights of the front-end, if it needs any"
    )


def add_extraction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-keypoints", type=int, default=MAX_KEYPOINTS, metavar="N", help="strongest kept per image"
    )
    parser.add_argument(
        "--resize",
        type=int,
        default=RESIZE,
        metavar="LONGER_SIDE",
        help="work at this size, never enlarges; 0: original",
    )
    parser.add_argument(
        "--tile", type=int, metavar="SIDE", help="cut images larger than this into tiles: little memory"
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="your own network instead of the one in the package"
    )
    parser.add_argument("--device", help="cpu or cuda; the GPU if there is one, unless given")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, all else on standard error"
    )


def make_matcher(options: argparse.Namespace) -> Matcher:
    return Matcher.from_pretrained(options.features, options.extractor_weights, options.weights, options.device)


def longer_side(options: argparse.Namespace) -> int | None:
    """The library's `resize` from --resize, where 0 asks for the original size."""
    return options.resize or None


def check_output(path: Path | None, suffixes: tuple[str, ...]) -> None:
    """Refuse an output that could not be written before any work is done."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise LinGlueError(f"{path}: output ends in {path.suffix or 'nothing'}, allowed are {', '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise LinGlueError(f"{path}: the folder {path.absolute().parent} does not exist")


class Report:
    """Collects the facts of a run: a line each for people, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._facts: dict[str, Any] = {}

    def line(self, text: str, **facts: Any) -> None:
        """Something a person reads now, and the same facts for machines."""
        self._facts.update(facts)
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def finish(self) -> None:
        if self._as_json:
            print(json.dumps(self._facts))
