"""Descriptors of other front-ends in the language of ALIKED's, which LightGlue understands: a linear map.

Two front-ends find many keypoints at the same places. What one's descriptors say there is fitted, by least squares, to
what ALIKED's say. The fit is rough, and LightGlue finds its way with it: it reads places and the other image, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features.base import Extractor
from linglue.io.images import read_image
from linglue.types import FloatArray

NEAR = 3.0  # pixels between keypoints of the same place; ALIKED's lie up to 1.5 right of and below others
LONGER_SIDE = 1024  # pixels
KEYPOINTS = 2048
RIDGE = 1e-3  # relative to the descriptors' own size
FEWEST = 1000  # places that a fit needs


def translate(descriptors: Tensor, translation: Tensor | None) -> Tensor:
    """Descriptors (N, D) as ALIKED's (N, 128), of unit length.

    Args:
        descriptors: of a front-end.
        translation: (D, 128) of `fit_translation`; None: they are ALIKED's.

    Example:
        >>> translate(torch.tensor([[3.0, 4.0]]), torch.eye(2))
        tensor([[0.6000, 0.8000]])
    """
    return descriptors if translation is None else F.normalize(descriptors @ translation.to(descriptors), dim=-1)


def fit_translation(front_end: Extractor, aliked: Extractor, images: Sequence[Path]) -> Tensor:
    """(D, 128) takes descriptors of a front-end to ALIKED's of the same places.

    Args:
        front_end: whose descriptors are to be understood.
        aliked: ALIKED.
        images: some dozens.
    """
    mine, theirs = [np.zeros((0, front_end.dim))], [np.zeros((0, aliked.dim))]
    for path in progress(images, desc="translate", unit="image"):
        image = read_image(path)
        ours, wanted = (each.extract(image, KEYPOINTS, LONGER_SIDE) for each in (front_end, aliked))
        pairs = same_places(ours.keypoints, wanted.keypoints)
        mine.append(ours.descriptors[pairs[:, 0]].astype(np.float64))
        theirs.append(wanted.descriptors[pairs[:, 1]].astype(np.float64))
    x, y = np.concatenate(mine), np.concatenate(theirs)  # (P, D), (P, 128)
    if len(x) < FEWEST:
        raise LinGlueError(f"{len(images)} images share {len(x)} places with ALIKED, expected at least {FEWEST}")
    ridge = RIDGE * np.square(x).mean() * len(x) * np.eye(x.shape[1])
    return torch.from_numpy(np.linalg.solve(x.T @ x + ridge, x.T @ y)).float()


def same_places(points0: FloatArray, points1: FloatArray) -> np.ndarray:
    """(P, 2) pairs of keypoints of two front-ends in one image that are each other's nearest, and near.

    Args:
        points0: (N, 2) of one.
        points1: (M, 2) of the other.

    Example:
        >>> same_places(np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([[1.0, 0.0], [2.0, 0.0]])).tolist()
        [[0, 0]]
    """
    if not len(points0) or not len(points1):
        return np.zeros((0, 2), np.int64)
    off, there = cKDTree(points1).query(points0)
    back = cKDTree(points0).query(points1)[1]
    mine = np.flatnonzero((off < NEAR) & (back[there] == np.arange(len(points0))))
    return np.stack([mine, there[mine]], axis=1)
