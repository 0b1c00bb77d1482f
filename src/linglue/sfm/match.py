"""Stage two: the matches of every pair, made once and again only when features or settings change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from linglue.core.fingerprint import file_sha256, fingerprint
from linglue.core.pool import run_all
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair
from linglue.matcher import Matcher
from linglue.network.weights import find_weights, load_network
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features, FloatArray, IndexArray

FEATURES_KEPT = 16  # images whose features a worker keeps in memory

Found = tuple[IndexArray, FloatArray]  # (K, 2) indices into the two feature sets, (K,) scores
Match = Callable[[Features, Features], Found]


class Recipe(Protocol):
    """A matcher that can be sent to another process and built there."""

    def settings(self) -> Mapping[str, Any]:
        """JSON values of all that decides its matches."""

    def build(self) -> Match: ...


@dataclass(frozen=True)
class LinGlueRecipe:
    """LinGlue, with the network of the package or with your own."""

    features: str = "sift"
    weights: Path | None = None
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        weights = self.weights or find_weights(self.features)
        return {"name": "linglue", "weights_sha256": file_sha256(weights)}

    def build(self) -> Match:
        network, info = load_network(self.weights or find_weights(self.features), self.device)
        if info.kind != self.features:
            raise LinGlueError(
                f"{self.weights}: network was made for {info.kind!r} features, these are {self.features!r}"
            )
        matcher = Matcher(None, network, info.kind, self.device)

        def match(features0: Features, features1: Features) -> Found:
            result = matcher.match(features0, features1)
            return result.indices, result.scores

        return match


@dataclass(frozen=True)
class Matched:
    """What the stage did."""

    made: int
    kept: int  # were there already
    matches: int  # of all pairs
    seconds: float  # of one processor, over all pairs, whenever they were made


def match_pairs(
    pairs: Sequence[Pair], recipe: Recipe, features: FeatureStore, store: MatchStore, workers: int = 1
) -> Matched:
    """Matches of all pairs into the store; those it has from the same features and settings stay.

    From now on only matches of this matcher are current.
    """
    made_from, matcher = features.made_from(), fingerprint(matcher=dict(recipe.settings()))
    unknown = next((name for pair in pairs for name in pair if name not in made_from), None)
    if unknown is not None:
        raise LinGlueError(f"{features.path}: no features of {unknown!r}, they must be extracted first")
    store.expect(matcher)
    there = store.current(made_from, pairs)
    missing = [pair for pair in pairs if pair not in there]
    if missing:
        recipe.build()  # what it lacks is said before any work
    bar = tqdm(total=len(pairs), initial=len(pairs) - len(missing), unit="pair", desc="match", disable=None)
    with bar:
        for pair, (indices, scores, seconds) in run_all(partial(_make_worker, recipe, features.path), missing, workers):
            store.put(pair, (made_from[pair[0]], made_from[pair[1]]), matcher, indices, scores, seconds)
            bar.update()
    done = store.current(made_from, pairs)
    return Matched(
        made=len(missing),
        kept=len(pairs) - len(missing),
        matches=sum(row.count for row in done.values()),
        seconds=sum(row.seconds for row in done.values()),
    )


def _make_worker(recipe: Recipe, features: Path) -> Callable[[Pair], tuple[IndexArray, FloatArray, float]]:
    match, load = recipe.build(), lru_cache(FEATURES_KEPT)(FeatureStore(features).get)

    def work(pair: Pair) -> tuple[IndexArray, FloatArray, float]:
        features0, features1 = load(pair[0]), load(pair[1])
        start = time.perf_counter()
        indices, scores = match(features0, features1)
        return indices, scores, time.perf_counter() - start

    return work
