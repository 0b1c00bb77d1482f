"""Fewer keypoints of a pair than were stored, with labels that stay true."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE

BESIDE = 5.0  # pixels, as in ground_truth: a keypoint that close to the lost partner makes it impossible to tell


def cut(pair: dict[str, Any], keypoints: int) -> dict[str, Any]:
    """The pair with the `keypoints` strongest keypoints of each image, in their order.

    A keypoint whose partner is lost has none any more, unless another keypoint lies beside that partner: then it is
    neither an example of a match nor of none.

    Args:
        pair: as a shard holds it.
        keypoints: how many of each image stay.
    """
    images = [pair["image0"], pair["image1"]]
    keep = [_strongest(image, keypoints) for image in images]  # (n,) each
    result = dict(pair)  # what is said of the pair as a whole stays
    for side in (0, 1):
        image, rows, other = images[side], keep[side], keep[1 - side]
        result[f"image{side}"] = {
            name: value if name == "image_size" else np.asarray(value)[rows] for name, value in image.items()
        }
        matches = np.asarray(pair[f"matches{side}"])[rows].astype(np.int64)  # (n,)
        new_index = np.full(len(images[1 - side]["mask"]), UNMATCHABLE, dtype=np.int64)
        new_index[other] = np.arange(len(other))
        found = matches >= 0
        partner = matches[found]
        matches[found] = new_index[partner]
        lost = np.flatnonzero(found)[new_index[partner] == UNMATCHABLE]
        positions = np.asarray(images[1 - side]["keypoints"])
        kept = positions[other][np.asarray(images[1 - side]["mask"])[other]]
        if len(lost) and len(kept):
            distance, _ = cKDTree(kept).query(positions[partner[new_index[partner] == UNMATCHABLE]])
            matches[lost[distance < BESIDE]] = IGNORE
        result[f"matches{side}"] = matches
    return result


def _strongest(image: dict[str, Any], count: int) -> NDArray[np.int64]:
    """(count,) rows of the highest scores, ascending; padding comes last."""
    mask = np.asarray(image["mask"])
    if mask.sum() <= count:
        return np.arange(count)  # padding lies behind all keypoints
    scores = np.where(mask, np.asarray(image["scores"]), -np.inf)
    return np.sort(np.argsort(-scores, kind="stable")[:count])
