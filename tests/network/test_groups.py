"""Groups of neighbours: every keypoint once, near each other, whatever the order."""

from __future__ import annotations

import pytest
import torch

from linglue.network.groups import group, leaves


@pytest.mark.parametrize("count", [1, 2, 7, 64, 65, 300])
def test_leaves_hold_every_keypoint_once_and_no_more_than_they_may(count: int) -> None:
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(count))
    found = leaves(points, 10)
    assert found.shape[1] <= 10
    assert sorted(found[found >= 0].tolist()) == list(range(count))


def test_leaves_are_neighbours() -> None:
    points = torch.rand(512, 2, generator=torch.Generator().manual_seed(0))
    found = leaves(points, 8)  # 64 of 8
    extent = points[found].amax(1) - points[found].amin(1)  # (64, 2)
    assert extent.mean() < 0.2  # a square with a 64th of the area has sides of 1/8


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100, 2000])
def test_groups_hold_every_keypoint_once_and_are_single_ones_where_there_are_few(count: int) -> None:
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(count))
    found = group(points, 8)
    assert sorted(found.order.tolist()) == list(range(count))
    assert len(found.starts) == len(found.landmarks) == min(count, 8) or count == 9  # nine in groups of two
    members = found.order.tensor_split(found.starts[1:]) if count else []
    assert all(landmark in own for landmark, own in zip(found.landmarks, members, strict=True))
    if count <= 8:
        assert found.landmarks.tolist() == list(range(count))


def test_means_of_groups_and_landmarks_do_not_depend_on_the_order_of_keypoints() -> None:
    points = torch.rand(200, 2, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(200, generator=torch.Generator().manual_seed(4))
    found, again = group(points, 16), group(points[order], 16)
    assert order[again.landmarks].tolist() == found.landmarks.tolist()
    assert torch.allclose(found.mean(points), again.mean(points[order]))
    assert torch.allclose(found.mean(points)[0], points[found.order[: found.starts[1]]].mean(0))
