"""Matches of many pairs: made once, again only where something changed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from skimage import data

from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.features.linpoint import LinPoint
from linglue.matcher import MatcherConfig
from linglue.matching.match import MatchingConfig
from linglue.sfm.match import match_pairs
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features, Matches

PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.fixture(scope="module")
def views() -> dict[str, Features]:
    image, front_end = data.coffee(), LinPoint()
    return {name: front_end.extract(image[:, x : x + 450], 300) for name, x in (("a", 0), ("b", 60), ("c", 150))}


@pytest.fixture
def stores(views, tmp_path) -> Iterator[tuple[FeatureStore, MatchStore]]:
    with FeatureStore(tmp_path / "f.db") as features, MatchStore(tmp_path / "m.db") as matches:
        for name, found in views.items():
            features.put(name, f"{name} 1", found)
        yield features, matches


def test_once_and_then_kept(stores, views, matcher):
    result = match_pairs(PAIRS, MatcherConfig(), *stores)
    assert (result.made, result.kept) == (3, 0)
    assert result.matches == sum(stores[1].counts().values()) > 300
    indices, _ = stores[1].get("a", "b")
    shift = views["a"].keypoints[indices[:, 0]] - views["b"].keypoints[indices[:, 1]]
    assert np.median(np.abs(shift - [60, 0])) < 0.1
    again = match_pairs(PAIRS, MatcherConfig(), *stores)
    assert (again.made, again.kept, again.matches, again.seconds) == (0, 3, result.matches, result.seconds)


def test_only_pairs_of_changed_images_are_done_again(stores, views):
    match_pairs(PAIRS, MatcherConfig(), *stores)
    stores[0].put("a", "a 2", views["a"].select(np.arange(200)))
    result = match_pairs(PAIRS, MatcherConfig(), *stores)
    assert (result.made, result.kept) == (2, 1)
    assert stores[1].get("a", "b")[0][:, 0].max() < 200


def test_workers_find_the_same(stores, tmp_path):
    features, one = stores
    match_pairs(PAIRS, MatcherConfig(), features, one)
    with MatchStore(tmp_path / "2.db") as two:
        match_pairs(PAIRS, MatcherConfig(), features, two, engine=Pool(2))
        assert one.rows().keys() == two.rows().keys()
        for pair in PAIRS:
            same = {tuple(row) for row in one.get(*pair)[0]} & {tuple(row) for row in two.get(*pair)[0]}
            assert len(same) > 0.98 * one.counts()[pair]
    features.close()
    assert not list(tmp_path.glob("f.db-*"))  # no worker holds it any more: a copy of the file has everything


@dataclass(frozen=True)
class FirstMatchesFirst:
    """A matcher of someone else's, named as package:Name."""

    config: MatcherConfig

    @property
    def settings(self):
        return {"score": self.config.matching.min_score}

    def match(self, features0, features1):
        return Matches.of(features0, features1, [[0, 0]], [self.config.matching.min_score])


def test_another_matcher_does_all_again(stores):
    one, two = (MatcherConfig(f"{__name__}:FirstMatchesFirst", matching=MatchingConfig(min_score=s)) for s in (0.5, 1))
    assert match_pairs(PAIRS, one, *stores).made == 3
    assert match_pairs(PAIRS, one, *stores).made == 0
    assert match_pairs(PAIRS, two, *stores).made == 3
    assert stores[1].get("a", "c")[1].tolist() == [1.0]


def test_a_pair_without_features_is_named(stores):
    with pytest.raises(LinGlueError, match="no features of 'd', they must be extracted first"):
        match_pairs([("a", "d")], MatcherConfig(), *stores)


def test_no_pairs(stores):
    assert match_pairs([], MatcherConfig(), *stores).matches == 0
