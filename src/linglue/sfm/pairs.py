"""Which pairs of images to match: all, neighbours in a sequence, look-alikes, neighbours in space, or a given list.

A pair source is a function `source(PairRequest) -> list[Pair]`. Other packages add theirs under the entry-point group
`linglue.pair_sources`, or are named as `package:function`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

from linglue.core.registry import Registry
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair, make_pair, read_pairs
from linglue.sfm.positions import exif_positions, position_pairs, read_positions
from linglue.sfm.retrieval import TOP, LoadFeatures, Retrieval

AUTO_EXHAUSTIVE = 60  # images; 1770 pairs, beyond which all pairs cost more than 20 neighbours for each by far

PAIR_SOURCES = Registry(
    "pair source",
    "linglue.pair_sources",
    {
        "auto": "linglue.sfm.pairs:from_auto",
        "exhaustive": "linglue.sfm.pairs:from_all",
        "sequential": "linglue.sfm.pairs:from_sequence",
        "retrieval": "linglue.sfm.pairs:from_retrieval",
        "positions": "linglue.sfm.pairs:from_positions",
        "list": "linglue.sfm.pairs:from_list",
    },
    takes="PairRequest",
)


@dataclass(frozen=True)
class PairsConfig:
    """How pairs are chosen. `auto` takes all pairs of up to 60 images and retrieval beyond."""

    method: str = "auto"  # a name of PAIR_SOURCES, or package:function
    top: int = TOP  # partners per image: of retrieval, positions and the loop closure
    overlap: int = 10  # sequential: each image with so many that follow, and with those 1, 2, 4, … 2^(overlap−1) later
    loop_every: int = 10  # sequential: look-alikes elsewhere for every n-th image; 0: no loop closure
    radius: float = 100.0  # positions: metres
    pair_list: Path | None = None  # list: a file of pairs
    positions: Path | None = None  # positions: a table; None: EXIF

    def __post_init__(self) -> None:
        PAIR_SOURCES.get(self.method)
        for name, least in (("top", 1), ("overlap", 1), ("loop_every", 0)):
            if getattr(self, name) < least:
                raise LinGlueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if not self.radius > 0:
            raise LinGlueError(f"radius is {self.radius}, expected a positive number of metres")

    def method_for(self, images: int) -> str:
        """The method that so many images get: `auto` decided."""
        if self.method != "auto":
            return self.method
        return "exhaustive" if images <= AUTO_EXHAUSTIVE else "retrieval"


@dataclass(frozen=True)
class PairRequest:
    """What a pair source may ask for."""

    names: Sequence[str]  # of all images, sorted
    load: LoadFeatures  # features of an image by its name
    config: PairsConfig
    paths: Mapping[str, Path]  # image files by name, where they are known


PairSource = Callable[[PairRequest], list[Pair]]


def choose_pairs(
    config: PairsConfig, names: Iterable[str], load: LoadFeatures, paths: Mapping[str, Path] | None = None
) -> list[Pair]:
    """The pairs to match, sorted.

    Args:
        config: which source, and its settings.
        names: of all images.
        load: gives the features of an image; called only by sources that look at them.
        paths: image files by name, for positions in EXIF.
    """
    request = PairRequest(sorted(set(names)), load, config, paths or {})
    source: PairSource = PAIR_SOURCES.get(config.method)
    return sorted({make_pair(*pair) for pair in source(request)})


def from_auto(request: PairRequest) -> list[Pair]:
    """All pairs of a few images, look-alikes of many."""
    source: PairSource = PAIR_SOURCES.get(request.config.method_for(len(request.names)))
    return source(request)


def from_all(request: PairRequest) -> list[Pair]:
    """All pairs."""
    return exhaustive(request.names)


def from_sequence(request: PairRequest) -> list[Pair]:
    """Neighbours by name, and loops closed by look-alikes."""
    config, names = request.config, request.names
    pairs = sequential(names, config.overlap)
    if not config.loop_every or len(names) < 2:
        return pairs
    return with_loops(pairs, names, Retrieval.build(names, request.load), config.loop_every, config.top)


def from_retrieval(request: PairRequest) -> list[Pair]:
    """Each image with those that look most alike."""
    if len(request.names) < 2:
        return []
    return Retrieval.build(request.names, request.load).pairs(request.config.top)


def from_positions(request: PairRequest) -> list[Pair]:
    """Neighbours in space; images without a position, or with none near theirs, get their look-alikes instead."""
    config, names = request.config, request.names
    if len(names) < 2:
        return []
    if config.positions is None:
        positions = exif_positions({name: request.paths[name] for name in names if name in request.paths})
    else:
        positions = read_positions(config.positions)
    known = {name: positions[name] for name in names if name in positions}
    if not known:
        raise LinGlueError(
            f"none of the {len(names)} images has a position, expected GPS coordinates in EXIF or a table"
        )
    pairs = set(position_pairs(known, config.top, config.radius))
    alone = set(names) - {name for pair in pairs for name in pair}
    if alone:
        partners = Retrieval.build(names, request.load).partners(sorted(alone), config.top)
        pairs |= {make_pair(name, other) for name, others in partners.items() for other in others}
    return sorted(pairs)


def from_list(request: PairRequest) -> list[Pair]:
    """The pairs of a file, all of them of the given images."""
    path = request.config.pair_list
    if path is None:
        raise LinGlueError("pairs method is 'list' but no list is given, expected a file of pairs")
    known = set(request.names)
    pairs = read_pairs(path)
    if not pairs:
        raise LinGlueError(f"{path}: holds no pair, expected two names per line with a tab between them")
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise LinGlueError(f"{path}: no image is called {name!r}, expected the names of the {len(known)} images")
    return pairs


def exhaustive(names: Iterable[str]) -> list[Pair]:
    """All pairs."""
    return list(combinations(sorted(set(names)), 2))


def sequential(names: Iterable[str], overlap: int = 10) -> list[Pair]:
    """Neighbours in the order of their names, each folder a sequence of its own.

    As COLMAP does: each with the next `overlap` images and, to bridge gaps, with those 1, 2, 4, … 2^(overlap−1) later.

    Args:
        names: of the images.
        overlap: at least 1.

    Example:
        >>> sequential(["1.jpg", "10.jpg", "2.jpg"], overlap=1)
        [('1.jpg', '2.jpg'), ('10.jpg', '2.jpg')]
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

    Args:
        pairs: of the sequence.
        names: of all images.
        retrieval: knows which of them look alike.
        every: images between two that are asked for.
        top: partners of each of those.
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


def _sequences(names: Iterable[str]) -> list[list[str]]:
    """The names of each folder in the order people count: img2 before img10."""
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folders[str(PurePosixPath(name).parent)].append(name)
    return [sorted(folders[folder], key=_natural) for folder in sorted(folders)]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts digits by value; text and numbers alternate, so that only like is compared with like."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))], name
