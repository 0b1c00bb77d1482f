"""Evidence of motion: the geometry that most matches follow, and what it says of candidates."""

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from linglue.matching.motion import GEOMETRY, WHOLE, Rigid, epipolar_distance, transfer_distance, whole_motion
from linglue.matching.neighborhood import Keypoints

SIZE = torch.tensor([1000.0, 800.0])


def two_views(count: int, seed: int = 0, flat: bool = False) -> tuple[Tensor, Tensor]:
    """(count, 2) pixels each of points in space, or on a plane, seen by two cameras that rotate and move."""
    rng = np.random.default_rng(seed)
    space = rng.uniform([-1, -1, 3], [1, 1, 3 if flat else 6], (count, 3))
    rotation, _ = cv2.Rodrigues(np.array([0, 0.15, 0.05]))
    other = space @ rotation.T + [-0.8, 0.1, 0.3]
    first, second = (800 * points[:, :2] / points[:, 2:] + 400 for points in (space, other))
    return torch.from_numpy(first).float(), torch.from_numpy(second).float()


def with_outliers(points: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Points of which a share lies anywhere, and (count,) bool which do not."""
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(len(points), generator=generator) >= share
    return torch.where(right[:, None], points, 800 * torch.rand(points.shape, generator=generator)), right


def same(count: int) -> Tensor:
    """(count, 2) the pairs k, k."""
    return torch.arange(count)[:, None].expand(count, 2)


def test_epipolar_distance_against_a_loop():
    matrix = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    points0, points1 = two_views(20)
    found = epipolar_distance(matrix, points0, points1)
    for k in range(20):
        p0, p1 = (np.array([*p[k].tolist(), 1.0]) for p in (points0, points1))
        line1, line0 = matrix.numpy() @ p0, matrix.numpy().T @ p1
        slope = np.hypot(np.hypot(*line1[:2]), np.hypot(*line0[:2]))
        assert found[k].item() == pytest.approx(abs(p1 @ line1) / slope, rel=1e-3)


def test_transfer_distance_is_that_of_both_images():
    matrix = torch.tensor([[2.0, 0, 10], [0, 2, 0], [0, 0, 1]])
    points0, points1 = torch.tensor([[5.0, 5], [5, 5]]), torch.tensor([[20.0, 10], [26, 18]])
    assert torch.allclose(transfer_distance(matrix, points0, points1), torch.tensor([0.0, (10 + 5) / 2]), atol=1e-4)


@pytest.mark.parametrize("flat", [False, True])
def test_candidates_that_follow_most_matches_stand_out(flat):
    points0, points1 = two_views(300, flat=flat)
    points1, right = with_outliers(points1, 0.5)
    pairs = same(300)
    found = Rigid(Keypoints(points0, SIZE), Keypoints(points1, SIZE), pairs).describe(pairs)
    assert found.shape == (300, GEOMETRY)
    off, share = found[:, 2 * int(flat)], found[:, 2 * int(flat) + 1]
    assert off[right].quantile(0.95) < off[~right].quantile(0.2)
    assert 0.35 < share[0] < 0.75 and len(share.unique()) == 1


def test_geometry_does_not_depend_on_which_image_is_the_first():
    points0, points1 = two_views(200)
    views = Keypoints(points0, SIZE), Keypoints(with_outliers(points1, 0.4)[0], SIZE)
    pairs = same(200)
    there, back = Rigid(*views, pairs), Rigid(*views[::-1], pairs)
    assert torch.allclose(there.describe(pairs), back.describe(pairs), atol=1e-4)
    assert torch.equal(there.off_line(*pairs.T), back.off_line(*pairs.T))


@pytest.mark.parametrize("count", [0, 7, 8])
def test_few_or_equal_matches_give_finite_numbers(count):
    points0, points1 = two_views(20)
    views = Keypoints(points0, SIZE), Keypoints(points1, SIZE)
    assert Rigid(*views, same(count)).describe(same(20)).isfinite().all()
    equal = torch.zeros(count, 2, dtype=torch.long)
    assert Rigid(*views, equal).describe(same(20)).isfinite().all()


def test_the_motion_of_the_whole_image_tells_right_from_wrong():
    points0, points1 = two_views(300, seed=2)
    points1, right = with_outliers(points1, 0.3)
    found = whole_motion(torch.cat([points0, points1], dim=1) / 1000, torch.arange(300), right.float())
    assert found.shape == (300, WHOLE)
    assert found[right, 0].median() < found[~right, 0].median()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_voters_give_finite_numbers(count):
    scene = torch.cat(two_views(5), dim=1) / 1000
    for belief in (torch.ones(count), torch.zeros(count)):
        assert whole_motion(scene, torch.arange(count).clamp(max=4), belief).isfinite().all()


def test_an_estimator_that_gives_up_is_no_geometry(monkeypatch):
    def stops(*arguments, **options):
        raise cv2.error("!model.empty()")

    points0, points1 = two_views(50, flat=True)
    monkeypatch.setattr(cv2, "findFundamentalMat", stops)
    found = Rigid(Keypoints(points0, SIZE), Keypoints(points1, SIZE), same(50)).describe(same(50))
    assert not found[:, :2].any() and found[:, 2:].any()
