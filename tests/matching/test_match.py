"""The order of the steps, and which of them a configuration asks for."""

import json

import pytest
import torch

from linglue.errors import LinGlueError
from linglue.matching.baselines import mutual_matches
from linglue.matching.completion import CompletionConfig
from linglue.matching.local_affine import FilterConfig, filtered_matches
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways

from .scene import Scene, bent, make_scene


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene(500, 150, bent, noise=2.0)


def run(scene: Scene, config: MatchingConfig, **how):
    return match_descriptors(*scene.views, scene.x0, scene.x1, config, **how)


def test_each_step_can_be_left_out(scene: Scene):
    nearest = nearest_both_ways(scene.x0, scene.x1)
    pairs, scores = run(scene, MatchingConfig.unfiltered())
    assert torch.equal(pairs, mutual_matches(*nearest)[0]) and torch.equal(scores, mutual_matches(*nearest)[1])
    paper, _ = run(scene, MatchingConfig.paper())
    assert torch.equal(paper, filtered_matches(*scene.views, *nearest, FilterConfig.paper()).pairs)
    full, plain = run(scene, MatchingConfig())[0], run(scene, MatchingConfig(completion=None))[0]
    assert len(full) != len(plain) and len(plain) > len(paper) > 100


def test_the_papers_head():
    config = MatchingConfig.paper()
    assert config.consensus is None and config.completion is None and config.filter is not None
    assert (config.filter.expansion, config.filter.hypotheses, config.filter.min_inliers) == (2, 128, 6)
    assert config.filter.for_features(True).min_confidence == config.filter.for_features(False).min_confidence == 200
    assert config.filter.max_scale_ratio == 1.5 and config.filter.max_stretch == 5 and not config.filter.both_ways


def test_features_without_shape_have_constants_of_their_own():
    assert FilterConfig().for_features(True) == FilterConfig()
    assert FilterConfig().for_features(False).min_confidence == 200
    bare = CompletionConfig().for_features(False)
    assert (bare.outlier, bare.tolerance) == (0.25, 0.1)


def test_minimum_score(scene):
    pairs, scores = run(scene, MatchingConfig())
    few, above = run(scene, MatchingConfig(min_score=0.8))
    assert torch.equal(few, pairs[scores >= 0.8]) and 0 < len(few) < len(pairs) and above.min() >= 0.8


def test_a_dustbin_asks_for_optimal_transport(scene):
    pairs, scores = run(scene, MatchingConfig(), dustbin=torch.tensor(-10.0))
    assert pairs.shape == (len(scores), 2)
    assert len(run(scene, MatchingConfig(min_score=1), dustbin=torch.tensor(-10.0))[0]) <= len(pairs)


def test_settings_are_json():
    assert json.loads(json.dumps(MatchingConfig().settings())) == MatchingConfig().settings()
    assert MatchingConfig().settings() != MatchingConfig.paper().settings()


@pytest.mark.parametrize("wrong", [{"min_score": -0.1}, {"min_score": 1.5}, {"filter": None}])
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(LinGlueError, match=r"is .*, expected"):
        MatchingConfig(**wrong)
