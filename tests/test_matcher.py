"""Matchers by name: one interface for ours, the baselines and anyone's own."""

import json
import pickle

import numpy as np
import pytest
import torch
from skimage import data

from linglue import LinGlueError, Matcher, MatcherConfig, Matches, MatchingConfig
from linglue.network.weights import packaged_weights
from linglue.types import Features


@pytest.fixture(scope="module")
def features(matcher, pair) -> list[Features]:
    return [matcher.extract(image, 400) for image in (pair.image0, pair.image1)]


@pytest.mark.parametrize("name", ["linglue", "linglue-full", "linglue-fast", "linglue-nofilter", "mnn", "ratio"])
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


@pytest.fixture(scope="module", params=["linpoint", "sift"])
def adaptive(request, pair) -> tuple[Matcher, dict[str, tuple[Features, Features]]]:
    """A matcher as users get it; a pair that is easy, one of too few keypoints to be sure, and an unrelated one."""
    matcher = Matcher.from_pretrained(request.param, device="cpu")
    easy = matcher.extract(pair.image0, 800), matcher.extract(pair.image1, 800)
    hard = easy[0].strongest(60), easy[1].strongest(60)
    unrelated = easy[0].strongest(400), matcher.extract(np.ascontiguousarray(data.rocket()), 400)
    return matcher, {"easy": easy, "hard": hard, "unrelated": unrelated}


def test_only_hard_pairs_go_through_the_network(adaptive):
    matcher, pairs = adaptive
    found = {name: matcher.match(*features) for name, features in pairs.items()}
    assert len(found["easy"]) > 200 and len(found["hard"]) > 15 and len(found["unrelated"]) == 0
    for name, stages in {"easy": set(), "hard": {"network", "consensus"}, "unrelated": set()}.items():
        assert found[name].timing.keys() - {"extract"} == {"first pass"} | stages


def test_hard_pairs_get_what_full_effort_gives(adaptive):
    matcher, pairs = adaptive
    full = Matcher.for_features(matcher.kind, matching=MatchingConfig(effort="full"))
    for name, features in pairs.items():
        everything, found = full.match(*features), matcher.match(*features)
        assert everything.timing.keys() - {"extract"} == {"network", "consensus"}
        if name == "hard":
            np.testing.assert_array_equal(found.indices, everything.indices)
            np.testing.assert_array_equal(found.scores, everything.scores)


def test_effort_does_not_depend_on_order_batch_or_threads(adaptive):
    matcher, pairs = adaptive
    alone = [matcher.match(*features) for features in pairs.values()]
    swapped = [matcher.match(*reversed(features)) for features in pairs.values()]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shared = matcher.match_batch(list(pairs.values()))
    finally:
        torch.set_num_threads(threads)
    together = matcher.match_batch(list(pairs.values()), batch_size=3)
    for one, other, helped, batched in zip(alone, swapped, shared, together, strict=True):
        np.testing.assert_array_equal(one.indices, helped.indices)
        np.testing.assert_array_equal(one.scores, helped.scores)
        assert {(j, i): s for (i, j), s in zip(other.indices.tolist(), other.scores, strict=True)} == {
            (i, j): s for (i, j), s in zip(one.indices.tolist(), one.scores, strict=True)
        }
        assert len(one) == len(batched)  # where more than one goes through the network, sums may round differently


def test_effort_is_part_of_the_settings():
    adaptive, full = (MatcherConfig(matching=MatchingConfig(effort=effort)).build() for effort in ("adaptive", "full"))
    assert adaptive.settings["first_sha256"] and full.settings["first_sha256"] is None
    assert adaptive.settings["matching"] != full.settings["matching"]
    own = MatcherConfig(weights=packaged_weights("linpoint")).build()  # nothing but one's own network
    assert own.settings["first_sha256"] is None and own.settings["network_sha256"] == full.settings["network_sha256"]
    with pytest.raises(LinGlueError, match="effort is 'most', expected adaptive or full"):
        MatchingConfig(effort="most")


def test_an_unknown_matcher_names_the_known():
    with pytest.raises(LinGlueError, match=r"'best', expected linglue, .*mnn, ratio.*, or package:Name"):
        MatcherConfig("best").build()
