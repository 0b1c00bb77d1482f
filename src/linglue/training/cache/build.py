"""Fills a feature cache: sources → images → features → ground truth → shards, by several processes, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from linglue.core.atomic import atomic_path, remove_leftovers
from linglue.core.engine import Engine
from linglue.core.fingerprint import file_sha256
from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.features.base import Extractor
from linglue.io.images import Image
from linglue.training.cache.store import SETTINGS, FeatureCache, check_shard, read_settings, shard_path, write_shard
from linglue.training.images.image_set import ImageSet
from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE, ground_truth
from linglue.training.sources.interface import PairSource
from linglue.types import Features, IndexArray

FORMAT = 4  # of the shards; a cache of another one is refused
MAX_REDRAWS = 20  # per pair on average, before the material is declared unfit
REMEMBERED = 100  # images, about 0.6 MB of features each
LEFTOVER_AGE = 3600.0  # seconds after which an unfinished shard of a dead process is removed

Sources = Mapping[str, tuple[PairSource, float]]  # by name, with their shares


@dataclass(frozen=True)
class CacheConfig:
    """What a cache holds. Change anything but `pairs` and it is another cache."""

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
            found = self._extractor.extract(image, self._keypoints).strongest(self._keypoints)
        self._known[key] = found  # now the youngest
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return found


@dataclass(frozen=True)
class _Work:
    """Everything a process needs to make any shard."""

    folder: Path
    config: CacheConfig
    sources: Sources
    images: Sequence[Image]
    extractor: Extractor
    extract: _Remembering


@dataclass(frozen=True, eq=False)
class _Sample:
    """One pair as it goes into a shard."""

    features: tuple[Features, Features]
    matches: tuple[IndexArray, IndexArray]
    source: int
    fundamental: NDArray[np.float64] | None = None  # (3, 3), where known


def build_cache(
    folder: str | Path,
    sources: Sources,
    images: Sequence[Image],
    extractor: Extractor,
    config: CacheConfig | None = None,
    engine: Engine | None = None,
    progress: bool = True,
) -> FeatureCache:
    """Make the missing shards of a cache and open it.

    The result does not depend on the engine nor on how often it was interrupted. With more than one worker everything
    given must be picklable.

    Args:
        folder: where the cache lives; one built with other settings is refused.
        sources: by name, with the share of pairs that each is to give.
        images: images that synthetic pairs are made of.
        extractor: the front-end.
        config: what the cache holds.
        engine: where pairs are made; None: in this process.
        progress: whether a bar is shown.
    """
    config = config or CacheConfig()
    if not sources or min(weight for _, weight in sources.values()) <= 0:
        raise LinGlueError("sources need at least one name with a positive share")
    if config.unrelated > 0 and len(images) == 1:  # none is fine for sources with their own material
        raise LinGlueError("unrelated pairs need at least 2 images")
    extract = _Remembering(extractor, config.keypoints)
    work = _Work(Path(folder), config, sources, images, extractor, extract)
    _claim(work)
    remove_leftovers(work.folder, older_than=LEFTOVER_AGE)
    missing = [i for i in range(config.shards) if not _is_complete(shard_path(work.folder, i))]
    with tqdm(total=config.shards, initial=config.shards - len(missing), unit="shard", disable=not progress) as bar:
        for index, arrays in (engine or Pool()).run(partial(partial, _make_shard, work), missing):
            write_shard(shard_path(work.folder, index), arrays)
            bar.update()
    return FeatureCache(work.folder)


def _claim(work: _Work) -> None:
    """Create the folder, or make sure that what it holds was built with the same settings."""
    settings = {
        "format": FORMAT,
        "kind": work.extractor.kind,
        "dim": work.extractor.dim,
        "extractor": extractor_sha256(work.extractor),
        "sources": {name: [source.settings, share] for name, (source, share) in work.sources.items()},
        "images": _images_sha256(work.images),
        **asdict(work.config),
    }
    settings = json.loads(json.dumps(settings))  # tuples become lists, as in the file
    file = work.folder / SETTINGS
    if file.exists():
        known = read_settings(work.folder)
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


def extractor_sha256(extractor: Extractor) -> str:
    """Names what the front-end computes as far as its weights decide it, wherever they came from."""
    digest = hashlib.sha256(f"{type(extractor).__module__}.{type(extractor).__qualname__}".encode())
    for name, module in sorted(vars(extractor).items()):
        if isinstance(module, nn.Module):
            for key, value in sorted(module.state_dict().items()):
                digest.update(f"{name}.{key}".encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _images_sha256(images: Sequence[Image]) -> str:
    """Names the set of images by their contents, in their order."""
    digest = hashlib.sha256()
    for item in images.paths if isinstance(images, ImageSet) else images:
        digest.update(file_sha256(item).encode() if isinstance(item, Path) else np.ascontiguousarray(item).tobytes())
    return f"{len(images)}:{digest.hexdigest()}"


def _is_complete(path: Path) -> bool:
    """Whether a sound shard is there."""
    if not path.exists():
        return False
    check_shard(path)
    return True


def _make_shard(work: _Work, index: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng([work.config.seed, index])
    samples: list[_Sample] = []
    stream = _stream(work, rng)
    while len(samples) < work.config.shard_size:
        samples.append(next(stream))
    return _arrays(samples, work.config.keypoints)


class _Watched(Sequence[Image]):
    """Images that remember which of them were used."""

    def __init__(self, images: Sequence[Image]) -> None:
        self._images = images
        self.used: set[int | str] = set()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any) -> Any:
        self.used.add(index)
        return self._images[index]


def _stream(work: _Work, rng: np.random.Generator) -> Iterator[_Sample]:
    """Pairs without end: those of one group after another and, in between, unrelated ones of two groups."""
    config = work.config
    sources = [source for source, _ in work.sources.values()]
    shares = np.array([share for _, share in work.sources.values()], dtype=np.float64)
    before: tuple[list[Features], set[int | str]] | None = None  # the last group: its features, and what it shows
    drawn = kept = 0
    made = np.zeros(len(sources))  # pairs so far; shares are of pairs, and some sources give many at a time
    while True:
        source = int((made / shares).argmin())
        watched = _Watched(work.images)
        group = sources[source].sample(watched, rng)
        features = [work.extract(image) for image in group.images]
        used = watched.used | group.shows
        fit = False
        for i, j in group.pairs:
            drawn += 1
            if drawn > MAX_REDRAWS * (kept + 3):
                raise LinGlueError(f"only {kept} of {drawn} pairs have {config.min_matches} matches: unfit images")
            zero, one = features[i], features[j]
            matches = ground_truth(
                zero.keypoints, one.keypoints, group.pair(i, j), config.threshold, oris0=zero.oris, oris1=one.oris
            )
            if (matches[0] >= 0).sum() < config.min_matches:
                continue
            kept, fit = kept + 1, True
            made[source] += 1
            yield _Sample((zero, one), matches, source, group.fundamental(i, j))
            wanted = rng.random() < config.unrelated / (1 - config.unrelated)
            if wanted and before is not None and not before[1] & used:
                yield _unrelated(before[0][i % len(before[0])], one, len(sources))
        if fit:
            before = features, used


def _unrelated(zero: Features, one: Features, source: int) -> _Sample:
    nothing = tuple(np.full(len(f), UNMATCHABLE, dtype=np.int64) for f in (zero, one))
    return _Sample((zero, one), (nothing[0], nothing[1]), source)


def _arrays(samples: list[_Sample], keypoints: int) -> dict[str, NDArray[Any]]:
    """The samples side by side, padded to the same number of keypoints; features once per image."""

    def pad(rows: list[NDArray[Any]], dtype: type, value: float = 0) -> NDArray[Any]:
        padded = np.full((len(rows), keypoints, *rows[0].shape[1:]), value, dtype=dtype)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return padded

    images = list({id(f): f for s in samples for f in s.features}.values())
    index = {id(f): k for k, f in enumerate(images)}
    arrays: dict[str, NDArray[Any]] = {
        "source": np.array([s.source for s in samples], dtype=np.int16),
        "fundamental": np.array(
            [np.zeros((3, 3)) if s.fundamental is None else s.fundamental for s in samples], dtype=np.float64
        ),
        "keypoints": pad([f.keypoints for f in images], np.float32),
        "descriptors": pad([f.descriptors for f in images], np.float16),
        "scores": pad([f.scores for f in images], np.float32),
        "count": np.array([len(f) for f in images], dtype=np.int32),
        "image_size": np.array([f.image_size for f in images], dtype=np.float32),
    }
    for name, value in (("scales", 1.0), ("oris", 0.0)):
        if getattr(images[0], name) is not None:
            arrays[name] = pad([getattr(f, name) for f in images], np.float32, value)
    for side in (0, 1):
        arrays[f"image{side}"] = np.array([index[id(s.features[side])] for s in samples], dtype=np.int32)
        arrays[f"matches{side}"] = pad([s.matches[side] for s in samples], np.int16, IGNORE)
    return arrays
