"""Stage two: the matches of every pair, made once and again only when features or settings change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from linglue.core.engine import Engine, Shared
from linglue.core.fingerprint import fingerprint
from linglue.core.pool import Pool
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features, FloatArray, IndexArray


@dataclass(frozen=True)
class Matched:
    """What the stage did."""

    made: int
    kept: int  # were there already
    matches: int  # of all pairs
    seconds: float  # of one processor, over all pairs, whenever they were made


def match_pairs(
    pairs: Sequence[Pair],
    matcher: MatcherConfig,
    features: FeatureStore,
    store: MatchStore,
    engine: Engine | None = None,
) -> Matched:
    """Matches of all pairs into the store; those it has from the same features and settings stay.

    From now on only matches of this matcher are current.

    Args:
        pairs: of images in `features`.
        matcher: built once per process.
        features: of all images.
        store: where the matches go.
        engine: where it is done; None: in this process.
    """
    made_from = features.made_from()
    by = fingerprint(matcher=dict(build_matcher(matcher).settings))  # what it lacks is said before any work
    unknown = next((name for pair in pairs for name in pair if name not in made_from), None)
    if unknown is not None:
        raise LinGlueError(f"{features.path}: no features of {unknown!r}, they must be extracted first")
    store.expect(by)
    there = store.current(made_from, pairs)
    missing = [pair for pair in pairs if pair not in there]
    bar = progress(total=len(pairs), initial=len(pairs) - len(missing), unit="pair", desc="match")
    with bar:
        shared: Shared[Pair] = Shared(tuple, partial(_load, features.path))
        for pair, found in (engine or Pool()).run(partial(_make_worker, matcher), missing, shared):
            store.put(pair, (made_from[pair[0]], made_from[pair[1]]), by, *found)
            bar.update()
    done = store.current(made_from, pairs)
    return Matched(
        made=len(missing),
        kept=len(pairs) - len(missing),
        matches=sum(row.count for row in done.values()),
        seconds=sum(row.seconds for row in done.values()),
    )


def build_matcher(config: MatcherConfig) -> PairMatcher:
    """The matcher of a configuration, built once per process."""
    weights = config.weights
    return _built(config, weights.stat().st_mtime_ns if weights is not None and weights.is_file() else 0)


@lru_cache(maxsize=2)
def _built(config: MatcherConfig, changed: int) -> PairMatcher:
    return config.build()


def _load(path: Path, name: str) -> Features:
    with FeatureStore(path) as store:  # a worker has no end at which to close it
        return store.get(name)


def _make_worker(
    config: MatcherConfig,
) -> Callable[[Pair, Features, Features], tuple[IndexArray, FloatArray, float]]:
    matcher = build_matcher(config)

    def work(pair: Pair, features0: Features, features1: Features) -> tuple[IndexArray, FloatArray, float]:
        start = time.perf_counter()
        found = matcher.match(features0, features1)
        return found.indices, found.scores, time.perf_counter() - start

    return work
