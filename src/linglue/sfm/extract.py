"""Stage one: the features of every photograph, taken once and again only when photograph or settings change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linglue.core.fingerprint import file_sha256, settings_hash
from linglue.core.pool import run_all
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.features.base import Extractor
from linglue.io.images import read_image, read_mask
from linglue.matcher import MAX_KEYPOINTS, RESIZE
from linglue.sfm.feature_store import FeatureStore
from linglue.sfm.scan import Photo
from linglue.types import Features


@dataclass(frozen=True)
class ExtractConfig:
    """How features are taken."""

    features: str = "sift"
    weights: Path | None = None  # of the front-end
    max_keypoints: int = MAX_KEYPOINTS
    resize: int | None = RESIZE  # longer side; None: original
    tile: int | None = None
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        """All that decides what the features of an image are."""
        return {
            "linglue": version("linglue"),
            "features": self.features,
            "weights_sha256": None if self.weights is None else file_sha256(self.weights),
            "max_keypoints": self.max_keypoints,
            "resize": self.resize,
            "tile": self.tile,
        }


@dataclass(frozen=True)
class Extracted:
    """What the stage did."""

    photos: list[Photo]  # that have keypoints
    problems: list[str]  # one line for each of the others
    made: int
    kept: int  # were there already
    keypoints: int


def extract_photos(photos: list[Photo], config: ExtractConfig, store: FeatureStore, workers: int = 1) -> Extracted:
    """Features of all photographs into the store; those it has from the same content and settings stay."""
    settings = config.settings()
    fingerprints = {
        photo.name: settings_hash({**settings, "image": photo.sha256, "mask": photo.mask_sha256}) for photo in photos
    }
    done = store.made_from()
    missing = [photo for photo in photos if done.get(photo.name) != fingerprints[photo.name]]
    failures: dict[str, str] = {}
    if missing:
        make_extractor(config.features, config.weights, config.device)  # what it lacks is said before any work
    bar = tqdm(total=len(photos), initial=len(photos) - len(missing), unit="image", desc="extract", disable=None)
    with bar:
        for photo, found in run_all(partial(_make_worker, config), missing, workers):
            if isinstance(found, str):
                failures[photo.name] = found
            else:
                store.put(photo.name, fingerprints[photo.name], found)
            bar.update()
    counts = store.counts()
    for photo in photos:
        if photo.name not in failures and counts[photo.name] == 0:
            failures[photo.name] = f"{photo.name}: no {config.features} keypoint, left out"
    usable = [photo for photo in photos if photo.name not in failures]
    return Extracted(
        photos=usable,
        problems=[failures[photo.name] for photo in photos if photo.name in failures],
        made=len(missing) - sum(photo.name in failures for photo in missing),
        kept=len(photos) - len(missing),
        keypoints=sum(counts[photo.name] for photo in usable),
    )


@dataclass(frozen=True)
class _Worker:
    """Takes the features of one photograph, or says in one line why it cannot."""

    extractor: Extractor
    config: ExtractConfig

    def __call__(self, photo: Photo) -> Features | str:
        try:
            image = read_image(photo.path)
            mask = None if photo.mask is None else read_mask(photo.mask)
            if mask is not None and mask.shape != image.shape[:2]:
                have, want = (f"{shape[1]}x{shape[0]}" for shape in (mask.shape, image.shape))
                raise LinGlueError(f"{photo.mask}: mask is {have} pixels, expected its photograph's size {want}")
            c = self.config
            return self.extractor.extract(image, c.max_keypoints, c.resize, mask, c.tile)
        except LinGlueError as error:
            return f"{photo.name}: left out ({str(error).removeprefix(f'{photo.path}: ')})"


def _make_worker(config: ExtractConfig) -> _Worker:
    return _Worker(make_extractor(config.features, config.weights, config.device), config)
