"""Poses as text: what is written is read, and what cannot be used is named."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue import LinGlueError
from linglue.geometry.pose import Pose
from linglue.io.poses import read_poses, write_poses


def some_poses() -> dict[str, Pose]:
    rng = np.random.default_rng(0)
    names = ["a.jpg", "room one/ä b-c.png", "1 2 3.jpg", "#not a comment.jpg"[1:]]
    return {name: Pose(Rotation.random(rng=rng).as_matrix(), rng.normal(size=3)) for name in names}


def test_poses_come_back_with_all_digits(tmp_path):
    poses = some_poses()
    write_poses(tmp_path / "poses.txt", poses)
    back = read_poses(tmp_path / "poses.txt")
    assert list(back) == list(poses)
    for name, pose in poses.items():
        np.testing.assert_allclose(back[name].matrix, pose.matrix, atol=1e-14)


def test_the_line_is_the_name_the_quaternion_and_the_translation(tmp_path):
    quarter = Pose(np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), np.array([1.0, 2.0, -3.0]))
    write_poses(tmp_path / "poses.txt", {"b.jpg": quarter})
    name, *numbers = (tmp_path / "poses.txt").read_text().split()
    assert name == "b.jpg"
    np.testing.assert_allclose(np.array(numbers, float), [np.sqrt(0.5), 0, 0, np.sqrt(0.5), 1, 2, -3], atol=1e-12)
    np.testing.assert_allclose(quarter.rotation @ quarter.centre + quarter.translation, 0, atol=1e-12)


def test_no_poses_and_comments(tmp_path):
    write_poses(tmp_path / "none.txt", {})
    assert read_poses(tmp_path / "none.txt") == {}
    (tmp_path / "poses.txt").write_text("# name qw qx qy qz tx ty tz\n\na.jpg 1 0 0 0 0 0 5\r\n")
    np.testing.assert_allclose(read_poses(tmp_path / "poses.txt")["a.jpg"].centre, [0, 0, -5])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.jpg 1 0 0 0 0 0\n", "line 1 is 'a.jpg 1 0 0 0 0 0', expected `name qw"),
        ("a.jpg 1 0 0 0 0 0 x\n", "line 1"),
        ("a.jpg 1 0 0 0 0 0 nan\n", "line 1"),
        ("a.jpg 2 0 0 0 0 0 0\n", "quaternion is [2.0, 0.0, 0.0, 0.0]"),
        ("a.jpg 1 0 0 0 0 0 0\na.jpg 1 0 0 0 0 0 0\n", "line 2: 'a.jpg' is given twice"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, text, told):
    (tmp_path / "poses.txt").write_text(text)
    with pytest.raises(LinGlueError) as error:
        read_poses(tmp_path / "poses.txt")
    assert told in str(error.value) and str(tmp_path / "poses.txt") in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_and_impossible_names(tmp_path):
    with pytest.raises(LinGlueError, match="cannot be read"):
        read_poses(tmp_path / "none.txt")
    for name in ("", " a.jpg", "a\nb.jpg"):
        with pytest.raises(LinGlueError, match="cannot be written"):
            write_poses(tmp_path / "poses.txt", {name: some_poses()["a.jpg"]})
    assert not list(tmp_path.iterdir())
