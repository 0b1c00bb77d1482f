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
from linglue.io.images import Image, read_image, shrink
from linglue.training.images.photometric import perturb
from linglue.training.sources.interface import Flags, ImageGroup, Points
from linglue.training.sources.labels import read_labels

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
    rotated: float = 0.3  # share of images that are rotated: a camera that was not held upright, or flies
    rotation: float = 60.0  # degrees at most, either way
    hard: float = 0.5  # of a scene, pairs are drawn by their number of labels to the power of minus this
    views: int = 4  # images of a group, whose labelled pairs are all used, at the price of the images


class TeacherSource:
    """Draws labelled pairs. Needs no images to be given, and no teacher."""

    def __init__(self, config: TeacherConfig) -> None:
        self.config = config
        self._scenes: list[_Scene] = []
        digest = hashlib.sha256()
        for images, labels in config.sets:
            if not Path(labels).is_dir():
                raise LinGlueError(f"{labels}: no such folder, expected a folder of teacher's labels")
            found = {path: read_labels(path) for path in sorted(Path(labels).glob("*.npz"))}
            files = [path for path, label in found.items() if len(label.points0)]
            for file in files:
                digest.update(file_sha256(file).encode())
            if files:
                shares = np.array([len(found[file].points0) for file in files], dtype=np.float64) ** -config.hard
                pairs = {(found[file].names[0], found[file].names[1]): file for file in files}
                self._scenes.append(_Scene(Path(images), pairs, shares / shares.sum()))
        if not self._scenes:
            raise LinGlueError(f"{len(config.sets)} sets of images hold no pair with verified labels")
        self._sha256 = digest.hexdigest()
        # A large scene has more to teach than a small one, but must not crowd it out.
        shares = np.sqrt([len(scene.pairs) for scene in self._scenes])
        self._shares = shares / shares.sum()

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn: the labels themselves, too."""
        return {**asdict(self.config), "labels_sha256": self._sha256}

    def __len__(self) -> int:
        """Number of labelled pairs."""
        return sum(len(scene.pairs) for scene in self._scenes)

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """A pair, hard ones more often, and what goes with it, of a scene drawn by the square root of its pairs.

        Args:
            images: are not used.
            rng: draws.
        """
        scene = self._scenes[int(rng.choice(len(self._scenes), p=self._shares))]
        names = scene.group(rng, self.config.views)
        labels = {pair: read_labels(scene.pairs[pair]) for pair in scene.pairs if set(pair) <= set(names)}
        views, maps = [], []
        for name in names:
            side = next(label.longer_side for pair, label in labels.items() if name in pair)
            view, view_from_image = self._changed(shrink(read_image(scene.images / name), side), rng)
            views.append(view)
            maps.append(view_from_image)

        def points(a: int, b: int) -> tuple[Array, Array]:
            """(M, 2) each: the labels of views a and b that both show."""
            turned = (names[a], names[b]) not in labels
            label = labels[(names[b], names[a]) if turned else (names[a], names[b])]
            both = (label.points1, label.points0) if turned else (label.points0, label.points1)
            moved = [p @ maps[k][:, :2].T + maps[k][:, 2] for p, k in zip(both, (a, b), strict=True)]
            inside = np.logical_and(*(_inside(p, views[k]) for p, k in zip(moved, (a, b), strict=True)))
            return moved[0][inside], moved[1][inside]

        pairs = [(names.index(zero), names.index(one)) for zero, one in labels]
        return ImageGroup(
            views,
            [(b, a) if rng.random() < 0.5 else (a, b) for a, b in pairs],
            lambda a, b: LocalAffineMapper(*points(a, b), self.config),
            shows=frozenset({f"images:{next(iter(labels.values())).scene}"}),
            fundamental=lambda a, b: eight_point(*points(a, b)),
        )

    def _changed(self, image: Image, rng: np.random.Generator) -> tuple[Image, Array]:
        """The image at another hour, from further away or rotated, and (2, 3) where its points are then."""
        config, size = self.config, np.array(image.shape[1::-1], dtype=np.float64)
        scale = 1.0
        if rng.random() < config.smaller:
            image = shrink(image, round(max(image.shape[:2]) * rng.uniform(0.5, 1)))
            scale = max(image.shape[:2]) / size.max()
        moved = np.diag([scale, scale, 1.0])
        moved[:2, 2] = (scale - 1) / 2  # as resize_points does
        if rng.random() < config.rotated:
            centre = (np.array(image.shape[1::-1]) - 1) / 2
            rotation = cv2.getRotationMatrix2D(tuple(centre.tolist()), rng.uniform(-1, 1) * config.rotation, 1.0)
            image = np.asarray(
                cv2.warpAffine(
                    image, rotation, image.shape[1::-1], flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101
                ),
                dtype=np.uint8,
            )
            moved = np.vstack([rotation, [0, 0, 1]]) @ moved
        if rng.random() < config.relit:
            image = perturb(image, rng)
        return image, moved[:2]


@dataclass(frozen=True, eq=False)
class _Scene:
    """Labelled pairs of images of one thing."""

    images: Path  # folder
    pairs: dict[tuple[str, str], Path]  # names of the images, file of labels
    shares: Array  # (pairs,) of being drawn

    def group(self, rng: np.random.Generator, views: int) -> list[str]:
        """Names of images: those of a pair, and others that are labelled with one of them."""
        pairs = list(self.pairs)
        names = list(pairs[int(rng.choice(len(pairs), p=self.shares))])
        while len(names) < views:
            others = sorted({name for pair in pairs if set(pair) & set(names) for name in pair} - set(names))
            if not others:
                break
            names.append(others[int(rng.integers(len(others)))])
        return names


def _inside(points: Array, image: Image) -> NDArray[np.bool_]:
    """(M,) whether points (M, 2) lie in the image."""
    return np.all((points >= 0) & (points <= np.array(image.shape[1::-1]) - 1), axis=1)


def eight_point(points0: Array, points1: Array) -> Array | None:
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

    start: Array  # (M, 2)
    end: Array  # (M, 2)
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
