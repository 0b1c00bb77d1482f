"""Which pairs of images to match: all, neighbours in a sequence, look-alikes, neighbours in space, or a given list."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair, make_pair, read_pairs
from linglue.sfm.positions import position_pairs
from linglue.sfm.retrieval import TOP, LoadFeatures, Retrieval

Method = Literal["auto", "exhaustive", "sequential", "retrieval", "positions", "list"]

AUTO_EXHAUSTIVE = 60  # images; 1770 pairs, beyond which all pairs cost more than 20 neighbours for each by far


@dataclass(frozen=True)
class PairsConfig:
    """How pairs are chosen. `auto` takes all pairs of up to 60 images and retrieval beyond."""

    method: Method = "auto"
    top: int = TOP  # partners per image: of retrieval, positions and the loop closure
    overlap: int = 10  # sequential: each image with so many that follow, and with those 1, 2, 4, … 2^(overlap−1) later
    loop_every: int = 10  # sequential: look-alikes elsewhere for every so manieth image; 0: no loop closure
    radius: float = 100.0  # positions: metres

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise LinGlueError(f"pairs method is {self.method!r}, expected {', '.join(get_args(Method))}")
        for name, least in (("top", 1), ("overlap", 1), ("loop_every", 0)):
            if getattr(self, name) < least:
                raise LinGlueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if not self.radius > 0:
            raise LinGlueError(f"radius is {self.radius}, expected a positive number of metres")

    def method_for(self, images: int) -> Method:
        """The method that so many images get: `auto` decided."""
        if self.method != "auto":
            return self.method
        return "exhaustive" if images <= AUTO_EXHAUSTIVE else "retrieval"


def choose_pairs(
    config: PairsConfig,
    names: Iterable[str],
    load_features: LoadFeatures,
    positions: Mapping[str, NDArray[np.float64]] | None = None,
    list_file: str | Path | None = None,
) -> list[Pair]:
    """The pairs to match, sorted. `positions` are needed by the method of that name, `list_file` by `list`."""
    names = sorted(set(names))
    if len(names) < 2 and config.method != "list":
        return []
    match config.method_for(len(names)):
        case "exhaustive":
            return exhaustive(names)
        case "sequential":
            pairs = sequential(names, config.overlap)
            if not config.loop_every:
                return pairs
            return with_loops(pairs, names, Retrieval.build(names, load_features), config.loop_every, config.top)
        case "retrieval":
            return Retrieval.build(names, load_features).pairs(config.top)
        case "positions":
            return _by_position(config, names, load_features, positions or {})
        case _:
            if list_file is None:
                raise LinGlueError("pairs method is 'list' but no list is given, expected a file of pairs")
            return from_list(list_file, names)


def exhaustive(names: Iterable[str]) -> list[Pair]:
    """All pairs."""
    return list(combinations(sorted(set(names)), 2))


def sequential(names: Iterable[str], overlap: int = 10) -> list[Pair]:
    """Neighbours in the order of their names, each folder a sequence of its own.

    As COLMAP does: each with the next `overlap` images and, to bridge gaps, with those 1, 2, 4, … 2^(overlap−1) later.
    """
    offsets = {*range(1, overlap + 1), *(2**i for i in range(overlap))}
    return sorted(
        make_pair(sequence[i], sequence[i + offset])
        for sequence in _sequences(names)
        for i in range(len(sequence))
        for offset in offsets
        if i + offset < len(sequence)
    )


def with_loops(pairs: list[Pair], names: Iterable[str], retrieval: Retrieval, every: int, top: int = TOP) -> list[Pair]:
    """The pairs of a sequence, and every `every`-th image with the `top` most similar it is not paired with yet.

    This closes loops and joins the sequences of different folders.
    """
    paired: dict[str, set[str]] = defaultdict(set)
    for name0, name1 in pairs:
        paired[name0].add(name1)
        paired[name1].add(name0)
    queries = [name for sequence in _sequences(names) for name in sequence[::every]]
    most = max((len(others) for others in paired.values()), default=0)
    found = set(pairs)
    for name, others in retrieval.partners(queries, top + most).items():
        found |= {make_pair(name, other) for other in [o for o in others if o not in paired[name]][:top]}
    return sorted(found)


def from_list(path: str | Path, names: Iterable[str]) -> list[Pair]:
    """The pairs of a list, all of them of the given images."""
    known = set(names)
    pairs = read_pairs(path)
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise LinGlueError(f"{path}: no image is called {name!r}, expected the names of the {len(known)} images")
    return pairs


def _by_position(
    config: PairsConfig,
    names: list[str],
    load_features: LoadFeatures,
    positions: Mapping[str, NDArray[np.float64]],
) -> list[Pair]:
    """Neighbours in space; images without a position, or with none near theirs, get their look-alikes instead."""
    known = {name: positions[name] for name in names if name in positions}
    if not known:
        raise LinGlueError(
            f"none of the {len(names)} images has a position, expected GPS coordinates in EXIF or a table"
        )
    pairs = set(position_pairs(known, config.top, config.radius))
    alone = set(names) - {name for pair in pairs for name in pair}
    if alone:
        partners = Retrieval.build(names, load_features).partners(sorted(alone), config.top)
        pairs |= {make_pair(name, other) for name, others in partners.items() for other in others}
    return sorted(pairs)


def _sequences(names: Iterable[str]) -> list[list[str]]:
    """The names of each folder in the order people count: img2 before img10."""
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folders[str(PurePosixPath(name).parent)].append(name)
    return [sorted(folders[folder], key=_natural) for folder in sorted(folders)]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts digits by value; text and numbers alternate, so that only like is compared with like."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))], name
