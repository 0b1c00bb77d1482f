"""Pair lists: one pair of image names per line, with a tab between them, as names may contain spaces.

Lists of hloc and COLMAP, one space between two names without any, are read as well. A line that begins with # is a
comment, unless it holds a tab: names may begin with # too. A pair has no direction and occurs once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError

Pair = tuple[str, str]  # two different image names, the smaller one first


def make_pair(name_a: str, name_b: str) -> Pair:
    """The pair of two images.

    Args:
        name_a: of an image.
        name_b: of another; either may come first.

    Returns:
        Both names, the smaller one first.

    Example:
        >>> make_pair("b.jpg", "a.jpg")
        ('a.jpg', 'b.jpg')
    """
    if name_a == name_b:
        raise LinGlueError(f"{name_a!r} is paired with itself, expected two different images")
    return (name_a, name_b) if name_a < name_b else (name_b, name_a)


def read_pairs(path: str | Path) -> list[Pair]:
    """The pairs of a list, sorted.

    Args:
        path: of the list: a pair a line, with a tab or one space between the names; # begins a comment.

    Returns:
        The pairs, each once.

    Example:
        >>> write_pairs("pairs.tsv", [("b.jpg", "a.jpg")])
        >>> read_pairs("pairs.tsv")
        [('a.jpg', 'b.jpg')]
    """
    path = Path(path)
    try:
        # Names of files need not be UTF-8; the escape keeps their bytes, as Python does in paths.
        text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror}), expected a list of pairs") from error
    pairs = set()
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would cut at characters names may contain
        line = line.removesuffix("\r")
        if not line.strip() or (line.startswith("#") and "\t" not in line):
            continue
        names = line.split("\t" if "\t" in line else " ")
        if len(names) != 2 or not all(names):
            raise LinGlueError(f"{path}: line {number} is {line!r}, expected two names with one tab between them")
        try:
            pairs.add(make_pair(*names))
        except LinGlueError as error:
            raise LinGlueError(f"{path}: line {number}: {error}") from error
    return sorted(pairs)


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Write pairs, sorted, in a form `read_pairs` gives back unchanged.

    Args:
        path: the file; it appears whole.
        pairs: names without tabs and line breaks.

    Example:
        >>> write_pairs("pairs.tsv", [("b.jpg", "a.jpg")])
    """
    wanted = sorted({make_pair(*pair) for pair in pairs})
    for name in (name for pair in wanted for name in pair):
        if not name or any(character in name for character in "\t\n\r"):
            raise LinGlueError(f"{path}: {name!r} cannot be in a list of pairs, expected no tabs or line breaks")
    text = "".join(f"{name0}\t{name1}\n" for name0, name1 in wanted)
    with atomic_path(path) as partial:
        partial.write_bytes(text.encode("utf-8", errors="surrogateescape"))
