"""Poses: motions there and back, and angles between them."""

import pickle

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue.geometry.pose import Pose, direction_error, rotation_error


def some_pose(seed: int) -> Pose:
    rng = np.random.default_rng(seed)
    return Pose(Rotation.random(rng=rng).as_matrix(), rng.normal(size=3))


def test_composition_and_inverse() -> None:
    a_from_b, b_from_c, point = some_pose(0), some_pose(1), np.array([1.0, -2.0, 3.0])
    in_b = b_from_c.rotation @ point + b_from_c.translation
    a_from_c = a_from_b @ b_from_c
    np.testing.assert_allclose(
        a_from_c.rotation @ point + a_from_c.translation, a_from_b.rotation @ in_b + a_from_b.translation
    )
    np.testing.assert_allclose((a_from_b @ a_from_b.inverse).matrix, np.eye(3, 4), atol=1e-14)


def test_forms_of_a_pose() -> None:
    pose = some_pose(2)
    for other in (
        Pose.from_matrix(pose.matrix),
        Pose.from_matrix(np.vstack([pose.matrix, [0, 0, 0, 1]])),
        Pose.from_numbers(pose.numbers),
        Pose.at(pose.rotation, pose.centre),
        pickle.loads(pickle.dumps(pose)),
    ):
        np.testing.assert_allclose(other.matrix, pose.matrix, atol=1e-14)
    np.testing.assert_allclose(pose.rotation @ pose.centre + pose.translation, 0, atol=1e-12)


def test_the_centre_is_kept_to_the_bit() -> None:
    centre = np.array([0.1, 0.2, 0.3])
    assert (Pose.at(some_pose(3).rotation, centre).centre == centre).all()


@pytest.mark.parametrize("degrees", [0, 1e-6, 0.5, 90, 179.5])
def test_rotation_error(degrees: float) -> None:
    base = Rotation.random(rng=np.random.default_rng(2))
    turned = Rotation.from_rotvec(np.radians(degrees) * np.array([0.6, 0, 0.8])) * base
    assert rotation_error(turned.as_matrix(), base.as_matrix()) == pytest.approx(degrees, abs=1e-9)


def test_direction_error_ignores_length_and_sign() -> None:
    assert direction_error([0, 0, 2], [0, 0, 5]) == 0
    assert direction_error([0, 1, 1], [0, 0, -3]) == pytest.approx(45)
    assert direction_error([1, 0, 0], [0, 0, 1]) == pytest.approx(90)
