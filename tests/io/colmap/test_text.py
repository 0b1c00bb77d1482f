"""The text that COLMAP imports matches from."""

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.io.colmap.text import write_match_text


def test_layout(tmp_path):
    pairs = [("db/ä.jpg", "b.jpg", np.array([[0, 70000], [12, 3]])), ("b.jpg", "c.jpg", np.zeros((0, 2), np.int64))]
    write_match_text(tmp_path / "matches.txt", iter(pairs))
    assert (tmp_path / "matches.txt").read_text("utf-8") == "db/ä.jpg b.jpg\n0 70000\n12 3\n\nb.jpg c.jpg\n\n"
    write_match_text(tmp_path / "none.txt", [])
    assert (tmp_path / "none.txt").read_text() == ""


@pytest.mark.parametrize("name", ["a b.jpg", "a\tb.jpg", ""])
def test_names_it_cannot_hold_are_refused(tmp_path, name):
    with pytest.raises(LinGlueError, match=r"matches\.txt: image name .*white space") as caught:
        write_match_text(tmp_path / "matches.txt", [("c.jpg", name, np.zeros((1, 2), np.int64))])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
