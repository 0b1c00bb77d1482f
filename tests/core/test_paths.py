"""Names that leave their folder are refused."""

import os

import pytest

from linglue.core.paths import check_name, path_below
from linglue.errors import LinGlueError


@pytest.mark.parametrize("name", ["a.jpg", "room/ä b.jpg", "..a/b..", "a/.hidden/b.jpg", "c:x.jpg", "a\\b.jpg"])
@pytest.mark.skipif(os.name == "nt", reason="other characters are special there")
def test_names_of_images(tmp_path, name):
    assert check_name(name, "here") == name
    assert path_below(tmp_path, name, ".npz") == tmp_path / f"{name}.npz"


@pytest.mark.parametrize(
    "name", ["../a", "../../escaped", "a/../../b", "a/..", "/etc/passwd", "", ".", "./", "a\0b", "a\nb", "//a"]
)
def test_names_that_leave_their_folder(tmp_path, name):
    with pytest.raises(LinGlueError, match="expected a plain path below a folder") as caught:
        check_name(name, "features.h5")
    assert str(caught.value).startswith("features.h5: image name is ") and "\n" not in str(caught.value)
    with pytest.raises(LinGlueError):
        path_below(tmp_path, name)
