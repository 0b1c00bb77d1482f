"""The matches of one pair in the viewer."""

from dataclasses import replace
from pathlib import Path

import pytest

from chromium import Browser
from linglue.errors import LinGlueError
from linglue.io.npz import load_matches, save_matches

pytest.importorskip("viser")

from linglue.viewer.pair import PairViewer


@pytest.fixture(scope="module")
def file(matcher, images, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "matches.npz"
    save_matches(path, matcher.match(*images, max_keypoints=300))
    return path


def test_matches_above_the_score_are_drawn(file, images):
    viewer = PairViewer(file, port=0)  # which names its images
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


def test_a_file_that_names_no_images_asks_for_them(file, images, tmp_path):
    bare = replace(load_matches(file), image0=None, image1=None)
    save_matches(tmp_path / "bare.npz", bare)
    with pytest.raises(LinGlueError, match="names no images, expected them by --images A B"):
        PairViewer(tmp_path / "bare.npz", port=0)
    PairViewer(tmp_path / "bare.npz", images, port=0).close()


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_shows_the_pair(file, tmp_path):
    viewer = PairViewer(file, port=0)
    try:
        with Browser(tmp_path, (1100, 700)) as browser:
            browser.open(viewer.address)
            browser.wait_for_text("matches, pair score")
            seen = browser.wait_for_picture(lambda seen: (seen[:, :700].max(axis=2) > 80).mean() > 0.2)
            assert (seen[:, :700].max(axis=2) > 80).mean() > 0.2
    finally:
        viewer.close()
