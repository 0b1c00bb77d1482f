"""Pairs of real images labelled by a learned matcher and verified by epipolar geometry.

Why: reconstruction (`linglue.training.sources.sfm`) rests on SIFT, so it is silent where SIFT fails, and that is where
there is most to learn. ALIKED with LightGlue matches across wider baselines. What it says is kept where a fundamental
matrix with many inliers explains it (`linglue.training.sources.labels`), and is carried over to the keypoints of any
front-end only beside a verified match whose neighbours agree on one local affine map. A match reaches a few pixels:
ALIKED fires on corners, SIFT on blobs, and their keypoints on one thing are 3 to 6 px apart. On six pairs of a
reconstructed scene, SIFT keypoints up to 8 px from a verified match went within 0.4 to 0.7 px (median; 95 %: 2 to 4 px;
spread 2) of where their SfM tracks went; with a radius of 2 px there were hardly any.

Limits. Epipolar geometry checks one of two coordinates: a wrong match along the epipolar line passes it, and is caught
only if it disagrees with its neighbours; repeated structure that shifts as a whole along the lines passes both. Labels
are as exact as ALIKED's keypoints (about a pixel) and lie where ALIKED fires. A teacher never says that a point has no
partner: everything away from its matches is unknown (NaN), so that negatives come from keypoints beside a verified
match without a counterpart, from unrelated pairs, and from the epipolar geometry of the verified matches: what lies far
from its line is no match, wherever it is. The student inherits the teacher's blind spots. Licences: ALIKED
is BSD-3-Clause, LightGlue Apache-2.0, so learning from them is clean. SuperGlue must never be a teacher here: its
licence forbids commercial use, and what is learned from it would be tainted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, read_image, shrink
from linglue.training.images.photometric import perturb
from linglue.training.sources.interface import Flags, ImageGroup, Points
from linglue.training.sources.labels import read_labels
from linglue.types import FloatArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TeacherConfig:
    """Where labelled pairs are, and how far their labels reach. Lengths in pixels."""

    sets: tuple[tuple[str, str], ...]  # (folder of images, folder of its labels)
    radius: float = 8.0  # around a verified match, in which a keypoint is told where it goes
    neighbours: int = 8  # verified matches that make a local affine map
    reach: float = 60.0  # they lie at most this far away
    spread: float = 1.5  # largest median distance of these matches from that map
    relit: float = 0.5  # share of images whose light is changed: the same pair at another hour
    smaller: float = 0.3  # share of images that are shrunk, to half their size at most
    hard: float = 0.5  # of a scene, pairs are drawn by their number of labels to the power of minus this


class TeacherSource:
    """Draws labelled pairs. Needs no images to be given, and no teacher."""

    def __init__(self, config: TeacherConfig) -> None:
        self.config = config
        self._scenes: list[tuple[Path, list[Path], Array]] = []  # folder of images, files of labels, their shares
        digest = hashlib.sha256()
        for images, labels in config.sets:
            if not Path(labels).is_dir():
                raise LinGlueError(f"{labels}: no such folder, expected a folder of teacher's labels")
            counts = {path: len(read_labels(path).points0) for path in sorted(Path(labels).glob("*.npz"))}
            files = [path for path, count in counts.items() if count]
            for file in files:
                digest.update(file_sha256(file).encode())
            if files:
                shares = np.array([counts[file] for file in files], dtype=np.float64) ** -config.hard
                self._scenes.append((Path(images), files, shares / shares.sum()))
        if not self._scenes:
            raise LinGlueError(f"{len(config.sets)} sets of images hold no pair with verified labels")
        self._sha256 = digest.hexdigest()
        # A large scene has more to teach than a small one, but must not crowd it out.
        shares = np.sqrt([len(files) for _, files, _ in self._scenes])
        self._shares = shares / shares.sum()

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn: the labels themselves, too."""
        return {**asdict(self.config), "labels_sha256": self._sha256}

    def __len__(self) -> int:
        """Number of labelled pairs."""
        return sum(len(files) for _, files, _ in self._scenes)

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One pair, of a scene drawn by the square root of its number of pairs, hard ones more often.

        Args:
            images: are not used.
            rng: draws.
        """
        folder, files, shares = self._scenes[int(rng.choice(len(self._scenes), p=self._shares))]
        labels = read_labels(files[int(rng.choice(len(files), p=shares))])
        order = (1, 0) if rng.random() < 0.5 else (0, 1)
        images, points = [], []
        for side in order:
            image = shrink(read_image(folder / labels.names[side]), labels.longer_side)
            image, scale = self._changed(image, rng)
            images.append(image)
            points.append(resize_points((labels.points0, labels.points1)[side], scale))
        return ImageGroup(
            images,
            [(0, 1)],
            lambda a, b: LocalAffineMapper(points[a], points[b], self.config),
            shows=frozenset({f"images:{labels.scene}"}),
            fundamental=lambda a, b: eight_point(points[a], points[b]),
        )

    def _changed(self, image: Image, rng: np.random.Generator) -> tuple[Image, float]:
        """The image at another hour, or from further away, and its size against what it was."""
        longer = max(image.shape[:2])
        if rng.random() < self.config.smaller:
            image = shrink(image, round(longer * rng.uniform(0.5, 1)))
        if rng.random() < self.config.relit:
            image = perturb(image, rng)
        return image, max(image.shape[:2]) / longer


def eight_point(points0: FloatArray, points1: FloatArray) -> Array | None:
    """(3, 3) the fundamental matrix of verified matches (M, 2), None where they do not determine one."""
    if len(points0) < 8:
        return None
    matrix, _ = cv2.findFundamentalMat(points0.astype(np.float64), points1.astype(np.float64), cv2.FM_8POINT)
    if matrix is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return None
    return np.asarray(matrix, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class LocalAffineMapper:
    """Carries matches over to the points beside them.

    A point within `radius` of a match goes where the affine map of the nearest matches takes it, anchored at the match
    itself. It is unknown (NaN) if there are fewer than 3 within `reach`, if they lie on a line, if they scatter about
    their map, or if the match itself does not follow it.
    """

    start: FloatArray  # (M, 2)
    end: FloatArray  # (M, 2)
    config: TeacherConfig

    def __call__(self, points: Points) -> tuple[Points, Flags]:
        query: Array = np.asarray(points, dtype=np.float64)
        mapped = np.full(query.shape, np.nan)
        if len(self.start) < 3 or not len(query):
            return mapped, np.zeros(len(query), dtype=np.bool_)
        start, end = self.start.astype(np.float64), self.end.astype(np.float64)
        count = min(self.config.neighbours, len(start))
        distance, row = cKDTree(start).query(query, k=count)  # nearest first
        index = np.flatnonzero(distance[:, 0] <= self.config.radius)
        row, weight = row[index], (distance[index] <= self.config.reach).astype(np.float64)
        linear, spread, own = _local_affine(start[row], end[row], weight)
        anchor = row[:, 0]
        offset = np.einsum("nij,nj->ni", linear, query[index] - start[anchor])
        sure = (spread <= self.config.spread) & (own <= 2 * self.config.spread)
        mapped[index[sure]] = (end[anchor] + offset)[sure]
        return mapped, np.isfinite(mapped).all(axis=1)


def _local_affine(start: Array, end: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Least-squares affine maps of N groups of K matches (N, K, 2) with 0/1 weights (N, K).

    Their linear parts (N, 2, 2), the median distance of the matches from the map (N,) and that of the first match (N,);
    both infinite where the matches do not determine a map.
    """
    total = np.maximum(weight.sum(axis=1), 1)
    centred = [p - (weight[..., None] * p).sum(axis=1, keepdims=True) / total[:, None, None] for p in (start, end)]
    weighted = weight[..., None] * centred[0]
    scatter = np.swapaxes(centred[0], 1, 2) @ weighted / total[:, None, None]  # (N, 2, 2)
    cross = np.swapaxes(centred[1], 1, 2) @ weighted / total[:, None, None]
    thinnest = np.linalg.eigvalsh(scatter)[:, 0]
    fit = (weight.sum(axis=1) >= 3) & (thinnest > 1.0)  # else they lie within a pixel of a line
    linear = cross @ np.linalg.inv(np.where(fit[:, None, None], scatter, np.eye(2)))
    residual = np.linalg.norm(centred[1] - np.einsum("nij,nkj->nki", linear, centred[0]), axis=2)
    median = np.full(len(start), np.inf)
    median[fit] = np.nanmedian(np.where(weight[fit] > 0, residual[fit], np.nan), axis=1)
    return linear, median, np.where(fit, residual[:, 0], np.inf)
