"""Fills a feature cache: generators → images → features → ground truth → shards, by several processes, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from linglue.core.atomic import atomic_path, remove_leftovers
from linglue.core.pool import run_all
from linglue.errors import LinGlueError
from linglue.features.base import Extractor
from linglue.io.images import Image
from linglue.training.cache import SETTINGS, FeatureCache, check_shard, shard_path, write_shard
from linglue.training.sources.pairs import IGNORE, UNMATCHABLE, PairGenerator, ground_truth_both
from linglue.training.sources.photos import Photos
from linglue.types import Features, IndexArray

MAX_REDRAWS = 20  # per pair on average, before the material is declared unfit
REMEMBERED = 100  # images, about 0.6 MB of features each
LEFTOVER_AGE = 3600.0  # seconds after which an unfinished shard of a dead process is removed


@dataclass(frozen=True)
class CacheConfig:
    """What a cache holds. Change anything and it is another cache."""

    pairs: int = 20_000
    shard_size: int = 200  # pairs
    keypoints: int = 1024  # per image, the strongest
    min_matches: int = 50  # pairs with fewer are dropped and drawn again
    unrelated: float = 0.05  # share of pairs whose images have nothing in common
    threshold: float = 3.0  # pixels, of the ground truth
    seed: int = 0

    @property
    def shards(self) -> int:
        """Number of shards; all are full, so the last one may exceed `pairs`."""
        return -(-self.pairs // self.shard_size)


class _Remembering:
    """Extracts; images of real scenes are in many pairs, so the last ones are kept."""

    def __init__(self, extractor: Extractor, keypoints: int) -> None:
        self._extractor, self._keypoints = extractor, keypoints
        self._known: dict[bytes, Features] = {}  # oldest first

    def __call__(self, image: Image) -> Features:
        key = hashlib.sha256(image.tobytes()).digest()
        found = self._known.pop(key, None)
        if found is None:
            found = self._extractor.extract(image, self._keypoints)
        self._known[key] = found  # now the youngest
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return found


@dataclass(frozen=True)
class _Work:
    """Everything a process needs to make any shard."""

    folder: Path
    config: CacheConfig
    generators: Mapping[str, tuple[PairGenerator, float]]
    photos: Sequence[Image]
    extractor: Extractor
    extract: _Remembering


@dataclass(frozen=True, eq=False)
class _Sample:
    """One pair as it goes into a shard."""

    features: tuple[Features, Features]
    matches: tuple[IndexArray, IndexArray]
    source: int


def build_cache(
    folder: str | Path,
    generators: Mapping[str, tuple[PairGenerator, float]],
    photos: Sequence[Image],
    extractor: Extractor,
    config: CacheConfig | None = None,
    workers: int = 1,
    progress: bool = True,
) -> FeatureCache:
    """Make the missing shards of the cache in `folder` and open it.

    `generators` maps a name to (generator, weight): pairs are drawn in proportion to the weights. With `workers` > 1
    everything given must be picklable, and a script needs the usual `if __name__ == "__main__"`.
    """
    config = config or CacheConfig()
    if not generators or min(weight for _, weight in generators.values()) <= 0:
        raise LinGlueError("generators need at least one name with a positive weight")
    if config.unrelated > 0 and len(photos) == 1:  # none is fine for generators with their own material
        raise LinGlueError("unrelated pairs need at least 2 photographs")
    extract = _Remembering(extractor, config.keypoints)
    work = _Work(Path(folder), config, generators, photos, extractor, extract)
    _claim(work)
    remove_leftovers(work.folder, older_than=LEFTOVER_AGE)
    missing = [i for i in range(config.shards) if not _is_complete(shard_path(work.folder, i))]
    with tqdm(total=config.shards, initial=config.shards - len(missing), unit="shard", disable=not progress) as bar:
        for _ in run_all(partial(_shard_maker, work), missing, max(1, workers)):
            bar.update()
    return FeatureCache(work.folder)


def _shard_maker(work: _Work) -> Callable[[int], int]:
    return partial(_make_shard, work)


def _claim(work: _Work) -> None:
    """Create the folder, or make sure that what it holds was built with the same settings."""
    settings = {
        "kind": work.extractor.kind,
        "dim": work.extractor.dim,
        "generators": {name: [repr(getattr(g, "config", g)), w] for name, (g, w) in work.generators.items()},
        "photos": _fingerprint(work.photos),
        **asdict(work.config),
    }
    file = work.folder / SETTINGS
    if file.exists():
        known = json.loads(file.read_text())
        # More pairs of the same kind may be added at any time: shards do not depend on their number.
        differing = [k for k in settings if k != "pairs" and known.get(k) != settings[k]]
        if differing:
            raise LinGlueError(
                f"{work.folder}: holds a cache built with other {', '.join(differing)}, use a new folder"
            )
        if known == settings:
            return
    work.folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as partial:  # its name is unique: several processes may claim the folder at once
        partial.write_text(json.dumps(settings, indent=1))


def _fingerprint(photos: Sequence[Image]) -> str:
    """Names the set of photographs: by file names where there are files, else by pixels."""
    digest = hashlib.sha256()
    for item in photos.paths if isinstance(photos, Photos) else photos:
        digest.update(item.name.encode() if isinstance(item, Path) else np.ascontiguousarray(item).tobytes())
    return f"{len(photos)}:{digest.hexdigest()[:16]}"


def _is_complete(path: Path) -> bool:
    """Whether a sound shard is there."""
    if not path.exists():
        return False
    check_shard(path)
    return True


def _make_shard(work: _Work, index: int) -> int:
    rng = np.random.default_rng([work.config.seed, index])
    samples: list[_Sample] = []
    stream = _stream(work, rng)
    while len(samples) < work.config.shard_size:
        samples.append(next(stream))
    write_shard(shard_path(work.folder, index), _arrays(samples, work.config.keypoints))
    return index


class _Watched(Sequence[Image]):
    """Photographs that remember which of them were used."""

    def __init__(self, photos: Sequence[Image]) -> None:
        self._photos = photos
        self.used: set[int | str] = set()

    def __len__(self) -> int:
        return len(self._photos)

    def __getitem__(self, index: Any) -> Any:
        self.used.add(index)
        return self._photos[index]


def _stream(work: _Work, rng: np.random.Generator) -> Iterator[_Sample]:
    """Pairs without end: related ones and, in between, unrelated ones made of halves of two related ones."""
    config = work.config
    makers = [generator for generator, _ in work.generators.values()]
    weights = np.array([weight for _, weight in work.generators.values()], dtype=np.float64)
    before: tuple[Features, set[int | str]] | None = None
    drawn = kept = 0
    while True:
        source = int(rng.choice(len(makers), p=weights / weights.sum()))
        watched = _Watched(work.photos)
        pair = makers[source].sample(watched, rng)
        drawn += 1
        if drawn > MAX_REDRAWS * (kept + 3):
            raise LinGlueError(f"only {kept} of {drawn} pairs have {config.min_matches} matches: unfit photographs")
        zero, one = work.extract(pair.image0), work.extract(pair.image1)
        matches = ground_truth_both(
            zero.keypoints, one.keypoints, pair, config.threshold, oris0=zero.oris, oris1=one.oris
        )
        if (matches[0] >= 0).sum() < config.min_matches:
            continue
        kept += 1
        yield _Sample((zero, one), matches, source)
        wanted = rng.random() < config.unrelated / (1 - config.unrelated)
        used = watched.used | pair.shows
        if wanted and before is not None and not before[1] & used:
            yield _unrelated(before[0], one, len(makers))
        before = zero, used


def _unrelated(zero: Features, one: Features, source: int) -> _Sample:
    nothing = tuple(np.full(len(f), UNMATCHABLE, dtype=np.int64) for f in (zero, one))
    return _Sample((zero, one), (nothing[0], nothing[1]), source)


def _arrays(samples: list[_Sample], keypoints: int) -> dict[str, NDArray[Any]]:
    """The samples side by side, padded to the same number of keypoints."""

    def pad(rows: list[NDArray[Any]], dtype: type, value: float = 0) -> NDArray[Any]:
        padded = np.full((len(rows), keypoints, *rows[0].shape[1:]), value, dtype=dtype)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return padded

    arrays: dict[str, NDArray[Any]] = {"source": np.array([s.source for s in samples], dtype=np.int16)}
    for side in (0, 1):
        features = [s.features[side] for s in samples]
        arrays[f"keypoints{side}"] = pad([f.keypoints for f in features], np.float32)
        arrays[f"descriptors{side}"] = pad([f.descriptors for f in features], np.float16)
        for name, value in (("scales", 1.0), ("oris", 0.0)):
            if getattr(features[0], name) is not None:
                arrays[f"{name}{side}"] = pad([getattr(f, name) for f in features], np.float32, value)
        arrays[f"count{side}"] = np.array([len(f) for f in features], dtype=np.int32)
        arrays[f"image_size{side}"] = np.array([f.image_size for f in features], dtype=np.float32)
        arrays[f"matches{side}"] = pad([s.matches[side] for s in samples], np.int32, IGNORE)
    return arrays
