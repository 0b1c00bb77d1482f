"""Stage two: the matches of every pair, made once and again only when features or settings change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from tqdm import tqdm

from linglue.core.fingerprint import settings_hash
from linglue.core.pool import run_all
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair
from linglue.matcher import MatcherConfig
from linglue.sfm.feature_store import FeatureStore
from linglue.sfm.match_store import MatchStore
from linglue.types import FloatArray, IndexArray

FEATURES_KEPT = 16  # images whose features a worker keeps in memory


@dataclass(frozen=True)
class Matched:
    """What the stage did."""

    made: int
    kept: int  # were there already
    matches: int  # of all pairs
    seconds: float  # of one processor, over all pairs, whenever they were made


def match_pairs(
    pairs: Sequence[Pair], matcher: MatcherConfig, features: FeatureStore, store: MatchStore, workers: int = 1
) -> Matched:
    """Matches of all pairs into the store; those it has from the same features and settings stay."""
    made_from, settings = features.made_from(), matcher.build().settings  # what it lacks is said before any work
    unknown = next((name for pair in pairs for name in pair if name not in made_from), None)
    if unknown is not None:
        raise LinGlueError(f"{features.path}: no features of {unknown!r}, they must be extracted first")
    fingerprints = {pair: settings_hash({**settings, "features": [made_from[name] for name in pair]}) for pair in pairs}
    done = store.made_from()
    missing = [pair for pair in pairs if done.get(pair) != fingerprints[pair]]
    bar = tqdm(total=len(pairs), initial=len(pairs) - len(missing), unit="pair", desc="match", disable=None)
    with bar:
        for pair, found in run_all(partial(_make_worker, matcher, features.path), missing, workers):
            store.put(pair, fingerprints[pair], *found)
            bar.update()
    counts, seconds_of = store.counts(), store.seconds()
    return Matched(
        made=len(missing),
        kept=len(pairs) - len(missing),
        matches=sum(counts[pair] for pair in pairs),
        seconds=sum(seconds_of[pair] for pair in pairs),
    )


def _make_worker(config: MatcherConfig, features: Path) -> Callable[[Pair], tuple[IndexArray, FloatArray, float]]:
    matcher, load = config.build(), lru_cache(FEATURES_KEPT)(FeatureStore(features).get)

    def work(pair: Pair) -> tuple[IndexArray, FloatArray, float]:
        features0, features1 = load(pair[0]), load(pair[1])
        start = time.perf_counter()
        found = matcher.match(features0, features1)
        return found.indices, found.scores, time.perf_counter() - start

    return work
