"""hloc's feature and match files (HDF5).

Features: one group per image name, keypoints with pixel centres at integers as ours are; hloc adds COLMAP's half pixel
itself. Matches: one group per pair, with the partner of every keypoint of the first image.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.paths import check_name
from linglue.errors import LinGlueError
from linglue.types import Features, FloatArray, ImageSize, IndexArray

ENOUGH = 8  # keypoints from which descriptors show what made them
UNIT_SLACK = 0.1  # of a descriptor's length, for files in half precision
LEARNED = frozenset({"superpoint", "aliked", "disk", "linpoint"})
_DATASETS = ("keypoints", "descriptors", "scores", "keypoint_scores", "image_size", "scales", "oris")


def list_hloc_images(path: str | Path) -> list[str]:
    """Names of all images in the file, sorted and checked; a name with folders is a chain of nested groups.

    Args:
        path: of hloc's features.

    Returns:
        The names.

    Example:
        >>> list_hloc_images("feats.h5")  # doctest: +SKIP
    """
    names: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and isinstance(item.get("keypoints"), h5py.Dataset):
            names.append(check_name(name, path))

    with _opened(path, "r") as file:
        file.visititems(visit)
    return sorted(names)


def load_hloc_features(
    path: str | Path, name: str, kind: str = "unknown", dog: bool = False, dim: int | None = None
) -> Features:
    """Features of one image of a file.

    Args:
        path: the file.
        name: of the image.
        kind: the front-end that made them; descriptors that cannot be its are refused.
        dog: the file is of hloc's DoG extractor: it stores orientations in degrees (here radians) and as scales the
            sigma of the blob (here its diameter, twice that).
        dim: length that the descriptors must have, if that is known.

    Returns:
        The features, as ours.

    Example:
        >>> load_hloc_features("feats.h5", "a.jpg", kind="superpoint")  # doctest: +SKIP
    """
    with _opened(path, "r") as file:
        group = file.get(name)
        if not isinstance(group, h5py.Group):
            raise LinGlueError(f"{path}: no image {name!r} in the file")
        arrays: dict[str, Any] = {
            key: np.asarray(group[key]) for key in _DATASETS if isinstance(group.get(key), h5py.Dataset)
        }
    for key in ("keypoints", "descriptors", "image_size"):
        if key not in arrays:
            raise LinGlueError(f"{path}: image {name!r} has no {key}, expected keypoints, descriptors and image_size")
    scores: Any = arrays.get("scores", arrays.get("keypoint_scores"))  # SuperPoint's and DISK's or ALIKED's name
    scales, oris = arrays.get("scales"), arrays.get("oris")
    if dog:
        scales = None if scales is None else 2 * scales.astype(np.float32)
        oris = None if oris is None else np.deg2rad(oris.astype(np.float32))
    try:
        found = Features(
            keypoints=arrays["keypoints"],
            descriptors=arrays["descriptors"].T,  # stored as (D, N)
            image_size=ImageSize(*arrays["image_size"].tolist()),
            scores=scores,
            scales=scales,
            oris=oris,
            kind=kind,
        )
        if dim not in (None, found.dim):
            raise LinGlueError(f"descriptors have {found.dim} entries, expected {dim} for {kind}")
        _check_kind(found)
    except (TypeError, ValueError) as error:  # LinGlueError is a ValueError
        hint = "; files of hloc's DoG need --hloc-dog" if str(error).startswith("oris") and not dog else ""
        raise LinGlueError(f"{path}: image {name!r}: {error}{hint}") from error
    return found


def save_hloc_features(path: str | Path, features: Iterable[tuple[str, Features]]) -> None:
    """Write a whole file, in float32; scales stay diameters and orientations radians. It appears when all is written.

    Args:
        path: the file.
        features: (image name, features), asked for one at a time and not kept.

    Example:
        >>> save_hloc_features("feats.h5", [("a.jpg", features)])  # doctest: +SKIP
    """
    with atomic_path(path) as temporary, _opened(temporary, "w", path) as file:
        for name, found in features:
            _put(file, path, name, found)


def save_hloc_matches(
    path: str | Path,
    matches: Iterable[tuple[str, str, IndexArray, FloatArray]],
    keypoints: Mapping[str, int],
) -> None:
    """Write the matches of many pairs; the file appears when all is written.

    Indices are int32 (hloc's own writer cuts them to 16 bits, its reader takes any), scores float32.

    Args:
        path: the file.
        matches: (name0, name1, (K, 2) indices, (K,) scores) of each pair.
        keypoints: their number in every image.

    Example:
        >>> one = ("a.jpg", "b.jpg", np.array([[0, 2]]), np.array([0.9]))
        >>> save_hloc_matches("matches.h5", [one], {"a.jpg": 2, "b.jpg": 3})
    """
    with atomic_path(path) as temporary, _opened(temporary, "w", path) as file:
        for name0, name1, indices, scores in matches:
            for name, column in zip((name0, name1), indices.T, strict=True):
                if name not in keypoints:
                    raise LinGlueError(f"{path}: the number of keypoints of {name!r} is not given")
                if len(column) and not 0 <= column.min() <= column.max() < keypoints[name]:
                    raise LinGlueError(
                        f"{path}: matches of {name0!r} and {name1!r} point outside the keypoints of {name!r}, "
                        f"expected 0 to {keypoints[name] - 1}"
                    )
            group = _pair_group(name0, name1)
            if group in file:
                raise LinGlueError(
                    f"{path}: pair {name0!r}, {name1!r} is there already; hloc cannot tell '/' in names from '-'"
                )
            partner = np.full(keypoints[name0], -1, dtype=np.int32)
            score = np.zeros(keypoints[name0], dtype=np.float32)
            partner[indices[:, 0]], score[indices[:, 0]] = indices[:, 1], scores
            file.create_dataset(f"{group}/matches0", data=partner)
            file.create_dataset(f"{group}/matching_scores0", data=score)


def load_hloc_matches(path: str | Path, name0: str, name1: str) -> tuple[IndexArray, FloatArray]:
    """The matches of a pair; found whichever image was matched first, and in files of older versions too.

    Args:
        path: the file.
        name0: of an image.
        name1: of the other.

    Returns:
        (K, 2) indices into the features of the two images, in this order, and (K,) scores; 1 if none are stored.

    Example:
        >>> one = ("a.jpg", "b.jpg", np.array([[0, 2]]), np.array([0.9]))
        >>> save_hloc_matches("m.h5", [one], {"a.jpg": 2, "b.jpg": 3})
        >>> load_hloc_matches("m.h5", "a.jpg", "b.jpg")[0].tolist()
        [[0, 2]]
    """
    with _opened(path, "r") as file:
        for separator in ("/", "_"):  # hloc's own now, and in its older files
            for reverse in (False, True):
                group = file.get(_pair_group(*((name1, name0) if reverse else (name0, name1)), separator))
                if isinstance(group, h5py.Group) and "matches0" in group:
                    indices, scores = _matches(group)
                    return indices[:, ::-1] if reverse else indices, scores
    raise LinGlueError(f"{path}: no matches of {name0!r} and {name1!r} in the file")


def _check_kind(features: Features) -> None:
    """Files do not say which front-end made them, but SIFT's histograms have no negative entries, all others do."""
    if features.kind == "unknown" or len(features) < ENOUGH:
        return
    length = float(np.median(np.linalg.norm(features.descriptors, axis=1)))
    if abs(length - 1) > UNIT_SLACK:
        raise LinGlueError(f"descriptors have a length of {length:.3g}, expected {features.kind}'s, of length 1")
    histograms = bool(features.descriptors.min() >= 0)
    if histograms != (features.kind == "sift") and features.kind in LEARNED | {"sift"}:
        have = "no negative entries, as SIFT's have" if histograms else "negative entries, as learned ones have"
        raise LinGlueError(f"descriptors have {have}, expected those of {features.kind}")


def _put(file: h5py.File, path: str | Path, name: str, features: Features) -> None:
    arrays = {
        "keypoints": features.keypoints,
        "descriptors": features.descriptors.T,
        "scores": features.scores,
        "image_size": np.array(features.image_size, dtype=np.int64),
        "scales": features.scales,
        "oris": features.oris,
    }
    try:
        group = file.require_group(name)
    except (TypeError, ValueError) as error:
        raise LinGlueError(f"{path}: {name!r} cannot be an image name, part of it is a dataset") from error
    for key in _DATASETS:  # not the whole group: it may hold the images of a folder of the same name
        if isinstance(group.get(key), h5py.Dataset):
            del group[key]
    for key, array in arrays.items():
        if array is not None:
            group.create_dataset(key, data=array)


def _pair_group(name0: str, name1: str, separator: str = "/") -> str:
    return separator.join(name.replace("/", "-") for name in (name0, name1))


def _matches(group: h5py.Group) -> tuple[IndexArray, FloatArray]:
    partner = np.asarray(group["matches0"]).astype(np.int64)
    scores = np.asarray(group["matching_scores0"]) if "matching_scores0" in group else np.ones(len(partner))
    index = np.flatnonzero(partner != -1)
    return np.column_stack([index, partner[index]]), scores[index].astype(np.float32)


@contextmanager
def _opened(path: str | Path, mode: str, named: str | Path | None = None) -> Iterator[h5py.File]:
    """The open file; what HDF5 says about unusable ones becomes one line that names it, or what it is to be `named`."""
    if mode == "r" and not Path(path).is_file():
        raise LinGlueError(f"{path}: no such hloc file")
    try:
        with h5py.File(path, mode) as file:
            yield file
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        doing = "read" if mode == "r" else "written"
        raise LinGlueError(f"{named or path}: not an HDF5 file that can be {doing} ({reason})") from error
