"""Labels real pairs by a learned matcher, kept where epipolar geometry verifies them.

    python -m linglue.training.sources.labels IMAGES -o LABELS --weights DIR

IMAGES is a folder of scenes, each a folder of images; LABELS gets a folder for each. What the labels are worth, and how
they reach other keypoints than the teacher's: `linglue.training.sources.teacher`. Nothing is downloaded.
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
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from tqdm import tqdm

from linglue.core.atomic import atomic_path
from linglue.core.optional import need
from linglue.errors import LinGlueError, exit_code
from linglue.features.weights import load_weights
from linglue.io.images import Image, read_image, shrink
from linglue.training.images.image_set import image_names
from linglue.training.sources.likely import likely_pairs
from linglue.types import Features, FloatArray

ALIKED_FILE = "aliked-n16.pth"
LIGHTGLUE_FILE = "aliked_lightglue_v0-1_arxiv-pth"


def load_lightglue(folder: str | Path) -> Any:
    """LightGlue for ALIKED, kornia's, with the weights in `folder`."""
    net = need("kornia.feature", "LightGlue as a teacher").LightGlue(None, input_dim=128)
    buffers = {"confidence_thresholds": net.confidence_thresholds}  # a constant that the file may lack
    load_weights(net, Path(folder) / LIGHTGLUE_FILE, "LightGlue for ALIKED as kornia stores it", buffers)
    return net.eval()


class Teacher(Protocol):
    """Finds matches. Features of an image are made once and used for all its pairs."""

    def features(self, image: Image) -> Any:
        """Whatever `match` needs to know of an image."""
        ...

    def match(self, zero: Any, one: Any) -> tuple[FloatArray, FloatArray]:
        """(M, 2) points of image 0 and (M, 2) of image 1 that correspond, in pixels.

        Args:
            zero: what `prepare` made of image 0.
            one: the same of image 1.
        """
        ...


class LightGlueTeacher:
    """ALIKED-N16 and LightGlue through kornia, with the weights in `folder`, e.g. TORCH_HOME/hub/checkpoints."""

    def __init__(self, folder: str | Path, keypoints: int = 2048) -> None:
        from linglue.features.aliked import Aliked

        self.keypoints = keypoints
        self._aliked = Aliked(Path(folder) / ALIKED_FILE)
        self._lightglue = load_lightglue(folder)

    def features(self, image: Image) -> Features:
        """Keypoints of an image, as LightGlue reads them."""
        return self._aliked.extract(image, self.keypoints)

    @torch.inference_mode()
    def match(self, zero: Features, one: Features) -> tuple[FloatArray, FloatArray]:
        """The teacher's matches of two images."""
        if not len(zero) or not len(one):
            return np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)
        pairs = self._lightglue({"image0": zero.tensors(), "image1": one.tensors()})["matches"][0].numpy()
        return zero.keypoints[pairs[:, 0]], one.keypoints[pairs[:, 1]]


@dataclass(frozen=True)
class LabelConfig:
    """Which labels are made, and which are kept."""

    longer_side: int = 1024  # images are shrunk to it
    max_pairs: int = 300  # per scene: half of them neighbours in the order of names, half any others
    likely: bool = False  # instead, at random among those that the packaged matcher finds related
    epipolar_error: float = 1.5  # pixels
    min_inliers: int = 30  # else the pair is given up
    min_share: float = 0.3  # of the teacher's matches, likewise
    seed: int = 0


def label_scene(
    images: Path, folder: Path, teacher: Teacher, config: LabelConfig | None = None, progress: bool = True
) -> int:
    """Label pairs of a folder of images of one scene into `folder`; returns the number of verified pairs.

    One file per pair, so that an interrupted run is resumed; pairs that failed leave an empty one.

    Args:
        images: folder of the scene.
        folder: where the labels go; what is there is kept.
        teacher: who matches.
        config: which pairs, and when a pair counts.
        progress: whether a bar is shown.
    """
    config = config or LabelConfig()
    names = image_names(images, at_least=2)
    folder.mkdir(parents=True, exist_ok=True)

    @lru_cache(maxsize=64)
    def features(number: int) -> Any:
        return teacher.features(shrink(read_image(images / names[number]), config.longer_side))

    kept = 0
    settings = {name: value for name, value in asdict(config).items() if name not in ("max_pairs", "likely")}
    if config.likely:
        chosen = likely_pairs(images, names, config.max_pairs, config.seed)
    else:
        chosen = choose_pairs(len(names), config)
    for i, j in tqdm(chosen, desc=images.name, unit="pair", disable=not progress):
        path = folder / f"{_digest(names[i], names[j], repr(settings))}.npz"
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
        kept += len(read_labels(path).points0) > 0
    return kept


def choose_pairs(images: int, config: LabelConfig) -> list[tuple[int, int]]:
    """At most `max_pairs` pairs of images (i < j), sorted: the closest in order, and as many at random of the rest."""
    every = sorted(combinations(range(images), 2), key=lambda pair: (pair[1] - pair[0], pair))
    near = every[: config.max_pairs // 2]
    far = every[len(near) :]
    order = np.random.default_rng(config.seed).permutation(len(far))[: config.max_pairs - len(near)]
    return sorted(near + [far[k] for k in order])


def verified(points0: FloatArray, points1: FloatArray, config: LabelConfig) -> tuple[FloatArray, FloatArray]:
    """The matches that one fundamental matrix explains, or none if they are too few or too small a share.

    Args:
        points0: (M, 2) in image 0.
        points1: (M, 2) in image 1.
        config: what is too few, and how far from its epipolar line a match may be.
    """
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


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Labels(NamedTuple):
    """What a file of labels says: matches of two images of a scene, none if they could not be verified."""

    scene: str
    names: list[str]  # the two images, below the scene's folder
    points0: FloatArray  # (M, 2) pixels
    points1: FloatArray  # (M, 2)
    longer_side: int  # that the images are shrunk to, which the pixels are of


def read_labels(path: Path) -> Labels:
    """Read one file of labels."""
    try:
        with np.load(path) as file:
            names, points0, points1 = file["names"].tolist(), file["points0"], file["points1"]
            if len(names) != 2 or points0.shape != points1.shape or points0.shape[1:] != (2,):
                raise ValueError("shapes")
            return Labels(str(file["scene"]), names, points0, points1, int(file["longer_side"]))
    except Exception as error:  # damaged archives raise nearly anything
        raise LinGlueError(f"{path}: not a file of teacher's labels; remove it and label again") from error


def scene_folders(images: Path) -> list[Path]:
    """The scenes below a folder: its sub-folders, in the order of their names."""
    if not images.is_dir():
        raise LinGlueError(f"{images}: no such folder, expected a folder of scenes, each a folder of images")
    found = sorted(p for p in images.iterdir() if p.is_dir())
    if not found:
        raise LinGlueError(f"{images}: holds no folder, expected scenes, each a folder of images")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m linglue.training.sources.labels", description="Label scenes.")
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of scenes, each a folder of images")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LABELS", help="where labels are kept")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="DIR", help=f"folder with {ALIKED_FILE} and {LIGHTGLUE_FILE}"
    )
    parser.add_argument("--scenes", nargs="+", default=None, metavar="NAME", help="only these")
    parser.add_argument("--max-pairs", type=int, default=LabelConfig.max_pairs, metavar="N", help="of a scene")
    parser.add_argument(
        "--likely", action="store_true", help="of large collections: only pairs the packaged matcher finds related"
    )
    parser.add_argument("--keypoints", type=int, default=2048, metavar="N", help="of an image")
    options = parser.parse_args(arguments)

    def work() -> None:
        scenes = [s for s in scene_folders(options.images) if options.scenes is None or s.name in options.scenes]
        teacher = LightGlueTeacher(options.weights, options.keypoints)
        config = LabelConfig(max_pairs=options.max_pairs, likely=options.likely)
        for scene in scenes:
            kept = label_scene(scene, options.output / scene.name, teacher, config)
            print(f"{options.output / scene.name}: {kept} pairs verified")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
