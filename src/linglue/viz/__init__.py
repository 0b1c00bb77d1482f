"""Pictures of what was found: matches, keypoints, neighbourhoods. Needs OpenCV only."""

from __future__ import annotations

from pathlib import Path

from linglue.errors import LinGlueError
from linglue.types import Matches
from linglue.viz.canvas import compare, save_image
from linglue.viz.draw import correctness, draw_keypoints, draw_matches, draw_neighborhoods

__all__ = [
    "compare",
    "correctness",
    "draw_keypoints",
    "draw_matches",
    "draw_neighborhoods",
    "save_image",
    "save_matches",
]


def save_matches(matches: Matches, path: str | Path) -> None:
    """Write a picture of the matches coloured by score, captioned with their number and the score of the pair."""
    if matches.image0 is None or matches.image1 is None:
        raise LinGlueError(
            f"{path}: nothing to draw on, the matches carry no images (expected: match image files or arrays, "
            "not bare Features)"
        )
    lines = [f"{len(matches)} match{'' if len(matches) == 1 else 'es'}", f"pair score {matches.pair_score:.2f}"]
    canvas = draw_matches(
        matches.image0, matches.image1, matches.points0, matches.points1, values=matches.scores, lines=lines
    )
    save_image(path, canvas)
