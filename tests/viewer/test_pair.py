"""The matches of one pair in the viewer."""

from pathlib import Path

import pytest

from linglue.errors import LinGlueError
from linglue.io.npz import save_matches

pytest.importorskip("viser")

from linglue.viewer.pair import PairViewer


@pytest.fixture(scope="module")
def file(matcher, images, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "matches.npz"
    save_matches(path, matcher.match(*images, max_keypoints=300))
    return path


def test_matches_above_the_score_are_drawn(file, images):
    viewer = PairViewer(file, images, port=0)
    try:
        assert viewer._text.content.startswith(f"{len(viewer.matches)} of {len(viewer.matches)} matches")
        every = viewer.draw_matches()
        viewer._score.value = 0.99
        viewer.draw()
        few = int((viewer.matches.scores >= 0.99).sum())
        assert viewer._text.content.startswith(f"{few} of ") and few < len(viewer.matches)
        assert (viewer.draw_matches() != every).any()
    finally:
        viewer.close()


def test_other_images_are_refused(file, images):
    with pytest.raises(LinGlueError, match="expected the image that was matched, 600x400"):
        PairViewer(file, (images[1], images[0]), port=0)
