"""Pairs of real photographs labelled by a learned matcher and verified by epipolar geometry.

Why: reconstruction (`linglue.training.sources.sfm`) rests on SIFT, so it is silent where SIFT fails, and that is where
there is most to learn. ALIKED with LightGlue matches across wider baselines. What it says is kept where a fundamental
matrix with many inliers explains it, and is carried over to our own keypoints only beside a verified match whose
neighbours agree on one local affine map. A match reaches a few pixels: ALIKED fires on corners, SIFT on blobs, and
their keypoints on one thing are 3 to 6 px apart. On six pairs of a reconstructed scene, SIFT keypoints up to 8 px from
a verified match went within 0.4 to 0.7 px (median; 95 %: 2 to 4 px; spread 2) of where their SfM tracks went; with a
radius of 2 px there were hardly any. Limits. Epipolar geometry checks one of two coordinates: a wrong match along the
epipolar line passes it, and is caught only if it disagrees with its neighbours; repeated structure that shifts as a
whole along the lines passes both. Labels are as exact as ALIKED's keypoints (about a pixel) and lie where ALIKED fires.
A teacher never says that a point has no partner: everything away from its matches is unknown (NaN), so that negatives
come from keypoints beside a verified match without a counterpart, and from unrelated pairs. The student inherits the
teacher's blind spots. Licences: ALIKED is BSD-3-Clause, LightGlue Apache-2.0, so learning from them is clean. SuperGlue
must never be a teacher here: its licence forbids commercial use, and what is learned from it would be tainted. Nothing
is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from tqdm import tqdm

from linglue.core.atomic import atomic_path
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.features.weights import load_weights
from linglue.io.images import Image, read_image, shrink
from linglue.training.sources.pairs import Flags, ImagePair, Points
from linglue.training.sources.photos import image_names
from linglue.types import Features, FloatArray

ALIKED_FILE = "aliked-n16.pth"
LIGHTGLUE_FILE = "aliked_lightglue_v0-1_arxiv-pth"
Array = NDArray[np.float64]


class Teacher(Protocol):
    """Finds matches. Features of an image are made once and used for all its pairs."""

    def features(self, image: Image) -> Any:
        """Whatever `match` needs to know of an image."""
        ...

    def match(self, zero: Any, one: Any) -> tuple[FloatArray, FloatArray]:
        """(M, 2) points of image 0 and (M, 2) of image 1 that correspond, in pixels."""
        ...


class LightGlueTeacher:
    """ALIKED-N16 and LightGlue through kornia, with the weights in `folder`, e.g. TORCH_HOME/hub/checkpoints."""

    def __init__(self, folder: str | Path, keypoints: int = 2048) -> None:
        from linglue.features.aliked import Aliked

        self.keypoints = keypoints
        self._aliked = Aliked(Path(folder) / ALIKED_FILE)
        net = need("kornia.feature", "the teacher").LightGlue(None, input_dim=128)
        buffers = {"confidence_thresholds": net.confidence_thresholds}  # a constant that the file may lack
        load_weights(net, Path(folder) / LIGHTGLUE_FILE, "LightGlue for ALIKED as kornia stores it", buffers)
        self._lightglue = net.eval()

    def features(self, image: Image) -> Features:
        return self._aliked.extract(image, self.keypoints)

    @torch.inference_mode()
    def match(self, zero: Features, one: Features) -> tuple[FloatArray, FloatArray]:
        if not len(zero) or not len(one):
            return np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)
        pairs = self._lightglue({"image0": zero.tensors(), "image1": one.tensors()})["matches"][0].numpy()
        return zero.keypoints[pairs[:, 0]], one.keypoints[pairs[:, 1]]


@dataclass(frozen=True)
class LabelConfig:
    """Which labels are made, and which are kept."""

    longer_side: int = 1024  # images are shrunk to it
    max_pairs: int = 300  # per scene, chosen at random
    epipolar_error: float = 1.5  # pixels
    min_inliers: int = 60  # else the pair is given up
    min_share: float = 0.3  # of the teacher's matches, likewise
    seed: int = 0


def label_scene(
    images: Path, folder: Path, teacher: Teacher, config: LabelConfig | None = None, progress: bool = True
) -> int:
    """Label pairs of a folder of photographs of one scene into `folder`; returns the number of verified pairs.

    One file per pair, so that an interrupted run goes on; pairs that failed leave an empty one.
    """
    config = config or LabelConfig()
    names = image_names(images, at_least=2)
    every = list(combinations(range(len(names)), 2))
    order = np.random.default_rng(config.seed).permutation(len(every))[: config.max_pairs]
    folder.mkdir(parents=True, exist_ok=True)

    @lru_cache(maxsize=64)
    def features(number: int) -> Any:
        return teacher.features(_read(images, names[number], config.longer_side))

    kept = 0
    for i, j in tqdm(sorted(every[k] for k in order), desc=images.name, unit="pair", disable=not progress):
        path = folder / f"{_digest(names[i], names[j], repr(asdict(config)))}.npz"
        if not path.exists():
            matches = verified(*teacher.match(features(i), features(j)), config)
            with atomic_path(path) as partial:
                np.savez_compressed(
                    partial,
                    scene=np.array(images.resolve().name),
                    names=np.array([names[i], names[j]]),
                    longer_side=np.array(config.longer_side),
                    points0=matches[0],
                    points1=matches[1],
                )
        kept += len(_load(path)[2]) > 0
    return kept


def verified(points0: FloatArray, points1: FloatArray, config: LabelConfig) -> tuple[FloatArray, FloatArray]:
    """The matches that one fundamental matrix explains, or none if they are too few or too small a share."""
    none = np.zeros((0, 2), dtype=np.float32)
    if len(points0) < max(config.min_inliers, 8):
        return none, none
    options = {"max_epipolar_error": config.epipolar_error, "seed": config.seed}
    poselib = need("poselib", "verifying the teacher's matches")
    _, info = poselib.estimate_fundamental(points0.astype(np.float64), points1.astype(np.float64), options)
    inliers = np.asarray(info["inliers"], dtype=np.bool_)
    if inliers.sum() < max(config.min_inliers, config.min_share * len(points0)):
        return none, none
    return points0[inliers], points1[inliers]


def _read(images: Path, name: str, longer_side: int) -> Image:
    return shrink(read_image(images / name), longer_side)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _load(path: Path) -> tuple[str, list[str], FloatArray, FloatArray, int]:
    """Scene, the two image names, the points of both images and the longer side they are meant at."""
    try:
        with np.load(path) as file:
            longer_side = int(file["longer_side"])
            return str(file["scene"]), file["names"].tolist(), file["points0"], file["points1"], longer_side
    except Exception as error:  # damaged archives raise nearly anything
        raise LinGlueError(f"{path}: not a file of teacher's labels; remove it and label again") from error


@dataclass(frozen=True)
class TeacherConfig:
    """Where labelled pairs are, and how far their labels reach. Lengths in pixels."""

    sets: tuple[tuple[str, str], ...]  # (folder of images, folder of its labels)
    radius: float = 8.0  # around a verified match, in which a keypoint is told where it goes
    neighbours: int = 8  # verified matches that make a local affine map
    reach: float = 60.0  # they lie at most this far away
    spread: float = 1.5  # largest median distance of these matches from that map


class TeacherGenerator:
    """Draws labelled pairs. Needs no photographs, and no teacher."""

    def __init__(self, config: TeacherConfig) -> None:
        self.config = config
        self._sets: list[tuple[Path, list[Path]]] = []
        for images, labels in config.sets:
            if not Path(labels).is_dir():
                raise LinGlueError(f"{labels}: no such folder, expected a folder of teacher's labels")
            files = [path for path in sorted(Path(labels).glob("*.npz")) if len(_load(path)[2])]
            if files:
                self._sets.append((Path(images), files))
        if not self._sets:
            raise LinGlueError(f"{len(config.sets)} sets of images hold no pair with verified labels")

    def sample(self, photos: Sequence[Image], rng: np.random.Generator) -> ImagePair:
        """One pair; every set is as likely as any other. `photos` are not used."""
        images, files = self._sets[int(rng.integers(len(self._sets)))]
        scene, names, points0, points1, longer_side = _load(files[int(rng.integers(len(files)))])
        sides = [(names[0], points0), (names[1], points1)]
        if rng.random() < 0.5:
            sides.reverse()
        (name0, start), (name1, end) = sides
        return ImagePair(
            _read(images, name0, longer_side),
            _read(images, name1, longer_side),
            LocalAffineMapper(start, end, self.config),
            LocalAffineMapper(end, start, self.config),
            shows=frozenset({f"images:{scene}"}),
        )


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m linglue.training.sources.teacher", description="Label a set of images."
    )
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of photographs of one scene")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LABELS", help="where labels are kept")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="DIR", help=f"folder with {ALIKED_FILE} and {LIGHTGLUE_FILE}"
    )
    parser.add_argument("--max-pairs", type=int, default=LabelConfig.max_pairs, metavar="N", help="chosen at random")
    options = parser.parse_args(arguments)
    try:
        teacher = LightGlueTeacher(options.weights)
        kept = label_scene(options.images, options.output, teacher, LabelConfig(max_pairs=options.max_pairs))
    except LinGlueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {kept} pairs labelled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
