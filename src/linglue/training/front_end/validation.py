"""What mutual nearest neighbours of a front-end find between synthetic views of images it has not learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.features.linpoint import ASIDE, LinPointNet, detect, to_tensor
from linglue.io.images import Image
from linglue.training.images.image_set import ImageSet
from linglue.training.sources.homography import HomographyConfig, HomographySource
from linglue.training.sources.interface import ImagePair
from linglue.types import ImageSize

KEYPOINTS = 1024
CORRECT = 3.0  # pixels


class Scores(NamedTuple):
    """Means over the pairs."""

    repeatability: float  # keypoints of image 0 seen in image 1 that have a keypoint there within CORRECT
    recall: float  # keypoints of image 0 seen in image 1 that are matched within CORRECT
    precision: float  # matches within CORRECT
    error: float  # pixels: median distance of correct matches from the truth


@dataclass(frozen=True, eq=False)
class Found:
    """Keypoints and descriptors of an image."""

    keypoints: NDArray[np.float32]  # (N, 2)
    descriptors: NDArray[np.float32]  # (N, D)


def make_validation(images: Sequence[Path], count: int) -> list[ImagePair]:
    """The same pairs of views for the same images, always.

    Args:
        images: files that were held out.
        count: number of pairs.
    """
    generator = HomographySource(HomographyConfig(longer_side=(480, 720), overlap=(0.3, 0.95)))
    source = ImageSet(images)
    return [generator.sample(source, np.random.default_rng((7, i))).pair() for i in range(count)]


def find(net: LinPointNet, image: Image) -> Found:
    """Keypoints of an image by a network in evaluation mode."""
    maps = net(to_tensor(image))
    keypoints, _ = detect(maps, 0, ImageSize(image.shape[1], image.shape[0]), KEYPOINTS)
    number = torch.zeros(len(keypoints), dtype=torch.int64)
    return Found(keypoints.numpy() - np.float32(ASIDE), net.describe(maps, number, keypoints).numpy())


@torch.inference_mode()
def validate(net: LinPointNet, pairs: Sequence[ImagePair]) -> Scores:
    """Scores of a network on pairs of `make_validation`.

    Args:
        net: the student or its average.
        pairs: of `make_validation`.
    """
    net.eval()
    scores = [score(pair, find(net, pair.image0), find(net, pair.image1)) for pair in pairs]
    return Scores(*np.mean(scores, axis=0).tolist())


def score(pair: ImagePair, zero: Found, one: Found) -> Scores:
    """Scores of the keypoints of one pair."""
    if len(zero.keypoints) < 2 or len(one.keypoints) < 2:
        return Scores(0.0, 0.0, 0.0, CORRECT)
    mapped, visible = pair.one_from_zero(zero.keypoints)
    nearest, _ = cKDTree(one.keypoints).query(np.nan_to_num(mapped, nan=-1e6))
    similar = zero.descriptors @ one.descriptors.T  # (N, M)
    forth, back = similar.argmax(1), similar.argmax(0)
    mutual = back[forth] == np.arange(len(forth))
    error = np.linalg.norm(mapped - one.keypoints[forth], axis=1)
    with np.errstate(invalid="ignore"):
        right = mutual & visible & (error <= CORRECT)
    seen = max(1, int(visible.sum()))
    return Scores(
        repeatability=float((nearest[visible] <= CORRECT).sum() / seen),
        recall=float(right.sum() / seen),
        precision=float(right.sum() / max(1, int(mutual.sum()))),
        error=float(np.median(error[right])) if right.any() else CORRECT,
    )
