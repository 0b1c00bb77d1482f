"""Pairs of images matched without a work folder: every image is extracted once, every pair is given as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from linglue.core.paths import path_below
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair, make_pair, read_pairs
from linglue.matcher import PairMatcher
from linglue.sfm.scan import list_images
from linglue.types import Features, Matches

FEATURES_KEPT = 128  # images whose features are kept in memory


@dataclass(frozen=True)
class FoundPairs:
    """Pairs of image names, the file of each name, and what is to be said about files that are left out."""

    pairs: list[Pair]
    paths: dict[str, Path]
    problems: list[str]


def find_pairs(source: Path, images: Path | None = None) -> FoundPairs:
    """All pairs of a folder, or those of a list.

    Args:
        source: a folder of images, subfolders included, or a list of pairs (see `linglue.io.pair_list`).
        images: what the names of a list are relative to; the folder of the list unless given.

    Example:
        >>> find_pairs(Path("images")).pairs  # doctest: +SKIP
        [('a.jpg', 'b.jpg'), ('a.jpg', 'c.jpg'), ('b.jpg', 'c.jpg')]
    """
    if source.is_dir():
        if images is not None:
            raise LinGlueError(f"--images is {images}, expected only with a list of pairs; {source} is a folder")
        found, problems = list_images(source)
        if len(found) < 2:
            why = f" ({problems[0]})" if problems else ""
            raise LinGlueError(f"{source}: holds {len(found)} images{why}, expected at least 2")
        return FoundPairs([make_pair(*pair) for pair in combinations(sorted(found), 2)], found, problems)
    pairs = read_pairs(source)
    if not pairs:
        raise LinGlueError(f"{source}: holds no pair, expected two image names per line with a tab between them")
    folder = source.parent if images is None else images
    names = sorted({name for pair in pairs for name in pair})
    return FoundPairs(pairs, {name: path_below(folder, name) for name in names}, [])


def match_images(
    pairs: Sequence[Pair], paths: Mapping[str, Path], extract: Callable[[Path], Features], matcher: PairMatcher
) -> Iterator[tuple[Pair, Matches | str]]:
    """Match pairs, one after the other.

    Args:
        pairs: of names.
        paths: files by name.
        extract: gives the features of a file.
        matcher: of features of that kind.

    Returns:
        Each pair with its matches, or with one line about why there are none.
    """

    @lru_cache(maxsize=FEATURES_KEPT)
    def features_of(name: str) -> Features | str:
        try:
            return extract(paths[name])
        except LinGlueError as error:
            return f"{name}: left out ({str(error).removeprefix(f'{paths[name]}: ')})"

    for name0, name1 in progress(pairs, unit="pair", desc="match"):
        features = features_of(name0), features_of(name1)
        problem = next((found for found in features if isinstance(found, str)), None)
        if problem is not None:
            yield (name0, name1), problem
            continue
        matches = matcher.match(features[0], features[1])  # type: ignore[arg-type]  # no text among them
        yield (name0, name1), replace(matches, image0=paths[name0], image1=paths[name1])
