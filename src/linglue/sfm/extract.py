"""Stage one: the features of every image, taken once and again only when image or settings change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from linglue.core.engine import Engine, Files
from linglue.core.fingerprint import features_fingerprint, weights_sha256
from linglue.core.pool import Pool
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features import DEFAULT_FEATURES, MAX_KEYPOINTS, RESIZE, make_extractor
from linglue.features.base import Extractor
from linglue.io.exif import upright_size
from linglue.sfm.scan import ImageFile
from linglue.sfm.store import FeatureStore
from linglue.types import Features


@dataclass(frozen=True)
class ExtractConfig:
    """How features are taken."""

    features: str = DEFAULT_FEATURES
    weights: Path | None = None  # of the front-end
    max_keypoints: int = MAX_KEYPOINTS
    resize: int | None = RESIZE  # longer side; None: original
    tile: int | None = None
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        """All that decides what the features of an image are; the front-end is built for it, once per process."""
        return {
            "features": self.features,
            "weights_sha256": weights_sha256(self.extractor()),
            "max_keypoints": self.max_keypoints,
            "resize": self.resize,
            "tile": self.tile,
        }

    def extractor(self) -> Extractor:
        """The front-end; what it lacks, and settings that it refuses, are a LinGlueError."""
        changed = self.weights.stat().st_mtime_ns if self.weights is not None and self.weights.is_file() else 0
        extractor = _build(self.features, self.weights, self.device, changed)
        extractor.check_settings(self.max_keypoints, self.resize, self.tile)
        return extractor


@lru_cache(maxsize=8)  # as many as an evaluation compares
def _build(features: str, weights: Path | None, device: str, changed: int) -> Extractor:
    return make_extractor(features, weights, device)


@dataclass(frozen=True)
class Extracted:
    """What the stage did."""

    images: list[ImageFile]  # that have keypoints
    problems: list[str]  # one line for each of the others
    made: int
    kept: int  # were there already
    keypoints: int


def extract_images(
    images: list[ImageFile], config: ExtractConfig, store: FeatureStore, engine: Engine | None = None
) -> Extracted:
    """Features of all images into the store; those it has from the same content and settings stay.

    From now on these images are the current ones, and no others. Imported features are used as they are.

    Args:
        images: as `scan_images` found them.
        config: how features are taken.
        store: where they are kept.
        engine: where it is done; None: in this process.
    """
    if store.imported():
        return _use_imported(images, store)
    if not images:  # a wrong folder: what is current stays so
        return Extracted([], [], 0, 0, 0)
    settings = config.settings()
    wanted = {image.name: features_fingerprint(settings, image.sha256, image.mask_sha256) for image in images}
    there = store.expect(wanted)
    store.locate({image.name: image.path for image in images if image.name in there})
    missing = [image for image in images if image.name not in there]
    failures: dict[str, str] = {}
    bar = progress(total=len(images), initial=len(images) - len(missing), unit="image", desc="extract")
    with bar:
        for image, found in (engine or Pool()).run(partial(_Worker, config), missing, Files(_files)):
            if isinstance(found, str):
                failures[image.name] = found
            else:
                store.put(image.name, wanted[image.name], found, image.path)
            bar.update()
    counts = store.counts()
    for image in images:
        if image.name not in failures and counts[image.name] == 0:
            failures[image.name] = f"{image.name}: no {config.features} keypoint, left out"
    usable = [image for image in images if image.name not in failures]
    return Extracted(
        images=usable,
        problems=[failures[image.name] for image in images if image.name in failures],
        made=len(missing) - sum(image.name in failures for image in missing),
        kept=len(images) - len(missing),
        keypoints=sum(counts[image.name] for image in usable),
    )


def _use_imported(images: list[ImageFile], store: FeatureStore) -> Extracted:
    """The images that imported features belong to, by name and size; they are not extracted anew."""
    counts, sizes = store.counts(), store.sizes()
    usable, problems = [], []
    for image in images:
        if not counts.get(image.name):
            problems.append(f"{image.name}: no imported features, left out")
            continue
        try:
            size = upright_size(image.path)
        except LinGlueError as error:
            problems.append(f"{image.name}: left out ({str(error).removeprefix(f'{image.path}: ')})")
            continue
        if size == sizes[image.name]:
            usable.append(image)
        else:
            have, want = (f"{s.width}x{s.height}" for s in (sizes[image.name], size))
            problems.append(f"{image.name}: left out (its imported features are of {have} pixels, it has {want})")
    store.locate({image.name: image.path for image in usable})
    return Extracted(usable, problems, 0, len(usable), sum(counts[image.name] for image in usable))


def _files(image: ImageFile) -> Sequence[Path]:
    return [image.path] if image.mask is None else [image.path, image.mask]


@dataclass(frozen=True)
class _Worker:
    """Takes the features of one image, or says in one line why it cannot."""

    config: ExtractConfig

    def __call__(self, image: ImageFile, path: Path, mask: Path | None = None) -> Features | str:
        c = self.config
        try:
            return c.extractor().extract(path, c.max_keypoints, c.resize, mask, c.tile)
        except LinGlueError as error:
            return f"{image.name}: left out ({str(error).removeprefix(f'{path}: ')})"
