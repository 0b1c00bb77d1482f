"""How honest scores are: bins, calibration error and separation against hand-computed cases."""

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.evaluation.tasks import scores
from linglue.evaluation.tasks.scores import FoundMatches, evaluate, scored_front_ends, tables
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig, packaged_weights


def found(scores, right, related=(0.9,), unrelated=(0.1,), by_default=(0,)) -> FoundMatches:
    return FoundMatches(*(np.array(values) for values in (scores, right, related, unrelated, by_default)))


def test_scores_that_are_the_share_of_right_matches_have_no_error():
    result = found([0.25] * 4 + [1.0] * 2, [True, False, False, False, True, True])
    assert result.calibration_error == pytest.approx(0)
    assert [len(scores) for scores, _ in result.bins()] == [0, 0, 4, 0, 0, 0, 0, 0, 0, 2]


def test_the_error_is_weighted_by_the_matches_of_a_bin():
    result = found([0.9, 0.9, 0.9, 0.1], [True, False, False, False])
    assert result.calibration_error == pytest.approx((3 * 0.9 - 1 + 0.1) / 4)


def test_separation_counts_ties_half():
    assert found([], [], related=(0.9, 0.5), unrelated=(0.5, 0.1)).separation == pytest.approx(3.5 / 4)


def test_tables_have_a_row_for_each():
    reliability, unrelated = tables({"one": found([0.05, 0.95], [False, True], by_default=(0, 4, 40))})
    assert reliability.rows[0] == ("one", "0", *[""] * 8, "100", "0.050")
    assert unrelated.rows[0][:2] == ("one", "4") and unrelated.rows[0][3] == "40"


def test_one_scene_has_no_unrelated_images(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(LinGlueError, match="the only scene, expected at least two"):
        evaluate([tmp_path / "a"])


def test_front_ends_with_scores_are_those_with_a_learned_consensus(tmp_path, monkeypatch):
    assert {"linpoint", "sift", "disk"} <= set(scored_front_ends())
    without = tmp_path / "without.safetensors"
    LinGlue(LinGlueConfig.preset("raw", 64)).save(without, "disk", "raw", "MIT", "none")
    monkeypatch.setattr(scores, "packaged_weights", lambda name: without if name == "disk" else packaged_weights(name))
    assert "linpoint" in scored_front_ends() and "disk" not in scored_front_ends()
