"""The measuring core: synthetic keypoints, parts in a process of their own, limits."""

import numpy as np
import pytest

from linglue.evaluation.subjects import Subject
from linglue.evaluation.timing import COVISIBLE, Limits, measure, measure_apart, synthetic_pair, warp


def test_synthetic_keypoints_are_half_matched_and_the_same_every_time() -> None:
    zero, one = synthetic_pair(400)
    again = synthetic_pair(400)
    np.testing.assert_array_equal(zero.descriptors, again[0].descriptors)
    np.testing.assert_array_equal(one.keypoints, again[1].keypoints)
    distance = np.linalg.norm(warp(zero.keypoints)[:, None] - one.keypoints[None], axis=2).min(axis=1)
    assert (distance < 4).sum() >= COVISIBLE * 400 * 0.95
    assert zero.scales is not None and synthetic_pair(10, "aliked")[0].scales is None


def test_parts_of_a_preset_and_of_a_baseline() -> None:
    costs = measure(Subject("pair", "sift"), 300, repeats=2)
    assert [cost.part for cost in costs] == ["network", "matching"]
    assert all(cost.seconds > 0 and cost.cpu_seconds > 0 and cost.megabytes >= 0 for cost in costs)
    assert costs[0].matches > 50  # the identity start finds most of what there is
    (cost,) = measure(Subject("mnn", "sift"), 300, repeats=1)
    assert (cost.subject, cost.part, cost.keypoints) == ("mnn", "matching", 300)


@pytest.mark.slow
def test_a_process_of_its_own_may_fail(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_apart(Subject("mnn", "sift"), 300, repeats=1)
    assert not isinstance(found, str) and found[0].matches > 50
    assert measure_apart(Subject("linear-sinkhorn", "sift"), 4096, limits=Limits(seconds=1)) == "too slow"
    assert measure_apart(Subject("linear-sinkhorn", "sift"), 8192, limits=Limits(megabytes=300)) == "too much memory"
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    found = measure_apart(Subject("superglue-10"), 300, repeats=1)
    assert not isinstance(found, str) and [cost.part for cost in found] == ["network", "matching"]
    assert all(cost.untrained for cost in found)


def test_images_stand_for_keypoints_where_there_are_none(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kornia")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    (cost,) = measure(Subject("loftr"), 60, repeats=1)  # of 7 times 9 squares
    assert cost.part == "network" and cost.cpu_seconds > 0 and cost.untrained
