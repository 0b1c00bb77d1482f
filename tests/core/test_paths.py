"""Names that leave their folder and outputs that are inputs are refused."""

import os

import pytest

from linglue.core.paths import check_name, check_outputs, path_below
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


def test_outputs_that_are_inputs_by_any_path(tmp_path, monkeypatch):
    source = tmp_path / "a.jpg"
    source.write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.jpg").symlink_to(source)
    os.link(source, tmp_path / "hard.jpg")
    monkeypatch.chdir(tmp_path)
    for output in (source, "a.jpg", "./sub/../a.jpg", "sub/link.jpg", "hard.jpg"):
        with pytest.raises(LinGlueError, match="output is the same file as the input") as caught:
            check_outputs([None, "b.jpg", source], [None, output])
        assert str(caught.value).startswith(str(output))
    check_outputs([source, None], ["new.jpg", "sub/a.jpg", None])


def test_outputs_that_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path)
    (tmp_path / "dangling.h5").symlink_to("same.h5")
    for other in ("same.h5", tmp_path / "same.h5", "linked/same.h5", "dangling.h5"):
        with pytest.raises(LinGlueError, match="output is the same file as the output same"):
            check_outputs([], ["same.h5", other])
    check_outputs([], ["same.h5", "other.h5", "none/same.h5"])


def test_folders_count_too(tmp_path):
    with pytest.raises(LinGlueError, match="output is the same file as the input"):
        check_outputs([tmp_path], [tmp_path / "x" / ".."])
