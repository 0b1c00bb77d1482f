"""Pairs of different images of one scene to learn from: what no augmentation of a single image shows.

Where two images of a scene were labelled (`python -m linglue.training.sources.labels`: ALIKED with LightGlue, verified
by epipolar geometry), the keypoints of their lessons beside the two ends of a label are a match. Labels are where the
teacher puts keypoints, lessons where they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.geometry.pixels import resize_points
from linglue.io.exif import upright_size
from linglue.training.front_end.lessons import LONGER_SIDE, Lessons
from linglue.training.sources.labels import read_labels
from linglue.types import FloatArray, IndexArray


@dataclass(frozen=True)
class RealConfig:
    """Which real pairs are learned from, and how often."""

    share: float = 0.0  # of the pairs of crops of a step
    labels: Path | None = None  # a folder for each scene, named as the folder of its images
    radius: float = 2.0  # pixels of a lesson between its keypoint and a label


class RealPairs:
    """Labelled pairs whose two images have lessons.

    Args:
        config: where labels are.
        lessons: of all images that are learned from.
    """

    def __init__(self, config: RealConfig, lessons: Lessons) -> None:
        self._config, self._lessons = config, lessons
        self._files: list[tuple[Path, int, int]] = []
        self.fingerprint = ""
        if config.share <= 0:
            return
        if config.labels is None or not config.labels.is_dir():
            raise LinGlueError(f"real.labels is {config.labels}, expected a folder of labelled scenes")
        known = {(path.parent.name, path.name): i for i, path in enumerate(lessons.images)}
        digest = hashlib.sha256()
        for file in sorted(config.labels.rglob("*.npz")):
            labels = read_labels(file)
            zero, one = (known.get((Path(labels.scene).name, name)) for name in labels.names)
            if zero is not None and one is not None and len(labels.points0):
                self._files.append((file, zero, one))
                digest.update(file_sha256(file).encode())
        if not self._files:
            raise LinGlueError(f"{config.labels}: no labelled pair of the images that are learned from, expected some")
        self.fingerprint = digest.hexdigest()
        # A large scene has more to teach than a small one, but must not crowd it out.
        scenes = [file.parent for file, _, _ in self._files]
        weight = np.array([scenes.count(scene) for scene in scenes]) ** -0.5
        self._shares = weight / weight.sum()
        self._matches = lru_cache(maxsize=4096)(self._find)

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._files)

    def draw(self, rng: np.random.Generator) -> tuple[int, int, IndexArray]:
        """Numbers of two lessons, and (K, 2) which of their keypoints match."""
        number = int(rng.choice(len(self._files), p=self._shares))
        _, zero, one = self._files[number]
        return zero, one, self._matches(number)

    def _find(self, number: int) -> IndexArray:
        file, zero, one = self._files[number]
        labels = read_labels(file)
        beside = [
            self._beside(index, points, labels.longer_side)
            for index, points in ((zero, labels.points0), (one, labels.points1))
        ]
        pairs = np.stack(beside, axis=1)  # (L, 2) −1 without a keypoint beside it
        pairs = pairs[(pairs >= 0).all(axis=1)]
        for side in (0, 1):  # one to one
            pairs = pairs[np.unique(pairs[:, side], return_index=True)[1]]
        return pairs

    def _beside(self, index: int, points: FloatArray, longer_side: int) -> IndexArray:
        """(L,) the lesson's keypoint at most `radius` from each label (L, 2), −1 where there is none."""
        longest = max(upright_size(self._lessons.images[index]))
        scale = min(LONGER_SIDE, longest) / min(longer_side, longest)
        keypoints = self._lessons[index].keypoints + np.float32(self._lessons.aside)  # as labels have them
        if not len(keypoints):
            return np.full(len(points), -1, dtype=np.int64)
        distance, nearest = cKDTree(keypoints).query(resize_points(points, scale))
        return np.where(distance <= self._config.radius, nearest, -1).astype(np.int64)
