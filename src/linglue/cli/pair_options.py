"""Options about which images are matched with each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.errors import LinGlueError
from linglue.sfm.pairs import PAIR_SOURCES, PairsConfig

DEFAULTS = PairsConfig()


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """--pairs and what goes with it; read them with `pairs_config`."""
    group = parser.add_argument_group("pairs")
    group.add_argument(
        "--pairs",
        metavar="SOURCE",
        default=DEFAULTS.method,
        help=f"which images are matched: {', '.join(PAIR_SOURCES.names())}, or package:function; exhaustive: all, "
        "sequential: neighbours by name, retrieval: look-alikes, positions: neighbours in space; "
        "auto: all up to 60 images, look-alikes beyond",
    )
    group.add_argument("--pair-list", type=Path, metavar="FILE", help="with --pairs list: two names per line and a tab")
    group.add_argument(
        "--positions", type=Path, metavar="FILE", help="with --pairs positions: a table of positions instead of EXIF"
    )
    group.add_argument("--top", type=int, default=DEFAULTS.top, metavar="N", help="partners per image")
    group.add_argument("--overlap", type=int, default=DEFAULTS.overlap, metavar="N", help="neighbours by name")
    group.add_argument(
        "--loop-every",
        type=int,
        default=DEFAULTS.loop_every,
        metavar="N",
        help="sequential: look-alikes for every N-th image close loops; 0: none",
    )
    group.add_argument("--radius", type=float, default=DEFAULTS.radius, metavar="METRES", help="neighbours in space")


def pairs_config(options: argparse.Namespace) -> PairsConfig:
    """The configuration, checked; options that the method would ignore are refused."""
    for name, method in (("pair_list", "list"), ("positions", "positions")):
        value = getattr(options, name)
        if value is not None and options.pairs != method:
            option = f"--{name.replace('_', '-')}"
            raise LinGlueError(f"{option} is {value}, expected only with --pairs {method} (it is {options.pairs})")
        if value is not None and not value.is_file():
            raise LinGlueError(f"{value}: no such file")
    if options.pairs == "list" and options.pair_list is None:
        raise LinGlueError("--pairs is list, expected --pair-list FILE with it")
    return PairsConfig(
        options.pairs,
        options.top,
        options.overlap,
        options.loop_every,
        options.radius,
        options.pair_list,
        options.positions,
    )
