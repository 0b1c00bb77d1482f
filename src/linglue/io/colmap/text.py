"""Matches as the text that `colmap matches_importer --match_type raw` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.types import IndexArray


def write_match_text(path: str | Path, matches: Iterable[tuple[str, str, IndexArray]]) -> None:
    """Write the matches of many pairs: a line with the names, a line per match, an empty line.

    Args:
        path: the file.
        matches: (name0, name1, (K, 2) indices) of each pair; indices count the keypoints that COLMAP's database holds
            for these images, in its order.
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for name0, name1, indices in matches:
            for name in (name0, name1):
                if not name or any(character.isspace() for character in name):
                    raise LinGlueError(f"{path}: image name {name!r} contains white space, which this text cannot hold")
            file.write(f"{name0} {name1}\n")
            np.savetxt(file, indices, fmt="%d")
            file.write("\n")
