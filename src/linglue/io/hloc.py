"""hloc's feature files (HDF5): one group per image name, keypoints with pixel centres at integers as ours are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from linglue.errors import LinGlueError
from linglue.types import Features, ImageSize

_DATASETS = ("keypoints", "descriptors", "scores", "keypoint_scores", "image_size", "scales", "oris")


def list_hloc_images(path: str | Path) -> list[str]:
    """Names of all images in the file, sorted; a name with folders is a chain of nested groups."""
    names: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and isinstance(item.get("keypoints"), h5py.Dataset):
            names.append(name)

    with _opened(path, "r") as file:
        file.visititems(visit)
    return sorted(names)


def load_hloc_features(path: str | Path, name: str, kind: str = "unknown", dog: bool = False) -> Features:
    """Features of the image `name`.

    `dog` is for files of hloc's DoG extractor: it stores orientations in degrees (here radians) and as scales the
    sigma of the blob (here its diameter, twice that).
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
            raise LinGlueError(f"{path}: image {name!r} has no {key}, needed are keypoints, descriptors and image_size")
    scores: Any = arrays.get("scores", arrays.get("keypoint_scores"))  # SuperPoint's and DISK's or ALIKED's name
    scales, oris = arrays.get("scales"), arrays.get("oris")
    if dog:
        scales = None if scales is None else 2 * scales.astype(np.float32)
        oris = None if oris is None else np.deg2rad(oris.astype(np.float32))
    try:
        return Features(
            keypoints=arrays["keypoints"],
            descriptors=arrays["descriptors"].T,  # stored as (D, N)
            image_size=ImageSize(*arrays["image_size"].tolist()),
            scores=scores,
            scales=scales,
            oris=oris,
            kind=kind,
        )
    except (TypeError, ValueError) as error:  # LinGlueError is a ValueError
        raise LinGlueError(f"{path}: image {name!r}: {error}") from error


def write_hloc_features(path: str | Path, name: str, features: Features) -> None:
    """Add or replace the image `name`, in float32; scales stay diameters and orientations radians.

    Changes the file in place, as HDF5 must: a crash can damage it, and two writers at once are not allowed.
    """
    arrays = {
        "keypoints": features.keypoints,
        "descriptors": features.descriptors.T,
        "scores": features.scores,
        "image_size": np.array(features.image_size, dtype=np.int64),
        "scales": features.scales,
        "oris": features.oris,
    }
    with _opened(path, "a") as file:
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


@contextmanager
def _opened(path: str | Path, mode: str) -> Iterator[h5py.File]:
    """The open file; what HDF5 says about unreadable ones becomes one line that names it."""
    if mode == "r" and not Path(path).is_file():
        raise LinGlueError(f"{path}: no such hloc feature file")
    try:
        with h5py.File(path, mode) as file:
            yield file
    except OSError as error:
        doing = "read" if mode == "r" else "written"
        raise LinGlueError(f"{path}: not an HDF5 file that can be {doing} ({str(error).splitlines()[0]})") from error
