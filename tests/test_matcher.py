"""Matchers by name: one interface for ours, the baselines and anyone's own."""

import json
import pickle

import numpy as np
import pytest

from linglue import LinGlueError, Matcher, MatcherConfig, Matches, MatchingConfig
from linglue.network.weights import packaged_weights
from linglue.types import Features


@pytest.fixture(scope="module")
def features(matcher, pair) -> list[Features]:
    return [matcher.extract(image, 400) for image in (pair.image0, pair.image1)]


@pytest.mark.parametrize("name", ["linglue", "linglue-fast", "linglue-nofilter", "mnn", "ratio"])
def test_every_matcher_has_one_interface(name, features, pair):
    built = pickle.loads(pickle.dumps(MatcherConfig(name))).build()  # as in another process
    found = built.match(*features)
    assert isinstance(found, Matches) and found.indices.dtype == np.int64
    assert (pair.errors(found.points0, found.points1) < 3).mean() > 0.5
    assert (np.diff(found.scores) <= 0).all() and len(found) > 100
    assert json.loads(json.dumps(dict(built.settings))) == built.settings


def test_settings_tell_matchers_apart():
    configs = [MatcherConfig(), MatcherConfig(matching=MatchingConfig.paper()), MatcherConfig("linglue-nofilter")]
    assert len({json.dumps(dict(config.build().settings), sort_keys=True) for config in configs}) == 3
    assert MatcherConfig().build().settings == MatcherConfig().build().settings
    other = Matcher.for_features("aliked").settings["network_sha256"]
    assert other != Matcher.for_features("sift").settings["network_sha256"]


def test_the_config_gives_what_the_matcher_gives(matcher, features):
    np.testing.assert_array_equal(MatcherConfig().build().match(*features).indices, matcher.match(*features).indices)


def test_a_network_for_other_features_is_refused():
    sift = packaged_weights("sift")
    with pytest.raises(LinGlueError, match="made for 'sift' features, expected one for 'disk'"):
        MatcherConfig(features="disk", weights=sift).build()
    assert Matcher.for_features(None, sift).kind == "sift"
    with pytest.raises(LinGlueError, match="expected one of them"):
        Matcher.for_features(None)


def test_an_unknown_matcher_names_the_known():
    with pytest.raises(LinGlueError, match=r"'best', expected linglue, .*mnn, ratio.*, or package:Name"):
        MatcherConfig("best").build()
