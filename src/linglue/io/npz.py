"""Features and matches as files (.npz, matches also .json), written so that a crash leaves the old or the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.types import Features, ImageSize, Matches

Arrays = dict[str, NDArray[Any]]

_OPTIONAL = ("scales", "oris")
_IMAGES = ("image0", "image1")


def save_features(path: str | Path, features: Features) -> None:
    """Write one feature set: keypoints, descriptors, scores, image_size, kind and, where known, scales and oris.

    Args:
        path: the file, .npz.
        features: of one image.

    Example:
        >>> one = Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480), kind="mine")
        >>> save_features("a.npz", one)
    """
    path = _checked_suffix(path, (".npz",))
    arrays: dict[str, Any] = {
        "keypoints": features.keypoints,
        "descriptors": features.descriptors,
        "scores": features.scores,
        "image_size": np.array(features.image_size, dtype=np.int64),
        "kind": np.array(features.kind),
    }
    for name in _OPTIONAL:
        if getattr(features, name) is not None:
            arrays[name] = getattr(features, name)
    _write_npz(path, arrays)


def load_features(path: str | Path) -> Features:
    """Read what `save_features` wrote.

    Args:
        path: the file.

    Returns:
        The feature set, checked.

    Example:
        >>> save_features("a.npz", Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480)))
        >>> load_features("a.npz").keypoints.tolist()
        [[3.0, 4.0]]
    """
    path = _checked_suffix(path, (".npz",))
    arrays = _read(path, ("keypoints", "descriptors", "scores", "image_size", "kind"))
    try:
        return Features(
            keypoints=arrays["keypoints"],
            descriptors=arrays["descriptors"],
            image_size=ImageSize(*arrays["image_size"].tolist()),
            scores=arrays["scores"],
            scales=arrays.get("scales"),
            oris=arrays.get("oris"),
            kind=str(arrays["kind"]),
        )
    except (TypeError, ValueError) as error:  # LinGlueError is a ValueError
        raise LinGlueError(f"{path}: {error}") from error


def save_matches(path: str | Path, matches: Matches, more: Mapping[str, NDArray[Any]] | None = None) -> None:
    """Write the matches of one pair, as .json if that is the suffix, else .npz; both hold the same names.

    SuperGlue's: keypoints0/1 (N, 2), matches (N0,) int64 into keypoints1 with -1, match_confidence (N0,), 0 if none.
    Ours: points0/1 (K, 2), indices (K, 2), scores (K,), pair_score, image_size0/1, and where files were matched their
    whole paths, image0/1. Descriptors are not included.

    Args:
        path: the file.
        matches: of one pair.
        more: arrays to be kept with them, such as the fundamental matrix, by names of their own.

    Example:
        >>> save_matches("matches.json", matches)  # doctest: +SKIP
    """
    path = _checked_suffix(path, (".npz", ".json"))
    index0, index1 = matches.indices.T
    partner = np.full(len(matches.features0), -1, dtype=np.int64)
    partner[index0] = index1
    confidence = np.zeros(len(matches.features0), dtype=np.float32)
    confidence[index0] = matches.scores
    arrays: dict[str, Any] = {
        "keypoints0": matches.features0.keypoints,
        "keypoints1": matches.features1.keypoints,
        "matches": partner,
        "match_confidence": confidence,
        "points0": matches.points0,
        "points1": matches.points1,
        "indices": matches.indices,
        "scores": matches.scores,
        "pair_score": np.array(matches.pair_score, dtype=np.float64),
        "image_size0": np.array(matches.features0.image_size, dtype=np.int64),
        "image_size1": np.array(matches.features1.image_size, dtype=np.int64),
        **{name: np.array(str(file.absolute())) for name, file in _files(matches).items()},
        **(more or {}),
    }
    if path.suffix.lower() == ".json":
        text = json.dumps({name: array.tolist() for name, array in arrays.items()})
        with atomic_path(path) as partial:
            partial.write_text(text)
    else:
        _write_npz(path, arrays)


def load_matches(path: str | Path) -> Matches:
    """Read what `save_matches` wrote; the feature sets have keypoints and sizes, but descriptors of length 0.

    Args:
        path: the file, .npz or .json.

    Returns:
        The matches.

    Example:
        >>> load_matches("matches.npz").points0  # doctest: +SKIP
    """
    path = _checked_suffix(path, (".npz", ".json"))
    per_image = ("keypoints0", "keypoints1", "image_size0", "image_size1")
    arrays = _read(path, (*per_image, "points0", "points1", "indices", "scores", "pair_score"))
    try:
        features = [
            Features(
                keypoints=_rows(arrays[f"keypoints{i}"]),
                descriptors=np.zeros((len(arrays[f"keypoints{i}"]), 0), dtype=np.float32),
                image_size=ImageSize(*arrays[f"image_size{i}"].tolist()),
            )
            for i in (0, 1)
        ]
        indices = arrays["indices"].astype(np.int64).reshape(-1, 2)
        count = len(indices)
        for i in (0, 1):
            if count and (indices[:, i].min() < 0 or indices[:, i].max() >= len(features[i])):
                raise LinGlueError(f"indices point outside keypoints{i}, expected 0 to {len(features[i]) - 1}")
        return Matches(
            points0=arrays["points0"].astype(np.float32).reshape(count, 2),
            points1=arrays["points1"].astype(np.float32).reshape(count, 2),
            indices=indices,
            scores=arrays["scores"].astype(np.float32).reshape(count),
            features0=features[0],
            features1=features[1],
            pair_score=float(arrays["pair_score"]),
            image0=_file(arrays, "image0"),
            image1=_file(arrays, "image1"),
        )
    except (TypeError, ValueError) as error:
        raise LinGlueError(f"{path}: {error}") from error


def _files(matches: Matches) -> dict[str, Path]:
    """The image files that were matched, where it was files."""
    return {name: image for name in _IMAGES if isinstance(image := getattr(matches, name), Path)}


def _file(arrays: Arrays, name: str) -> Path | None:
    return Path(str(arrays[name])) if name in arrays else None


def _rows(points: NDArray[Any]) -> NDArray[Any]:
    """(N, 2) also when there are none: an empty JSON list has lost its second dimension."""
    return points.reshape(0, 2) if points.size == 0 else points


def _write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    with atomic_path(path) as partial, partial.open("wb") as file:  # given a name, numpy would add .npz to .NPZ
        np.savez(file, **arrays)


def _checked_suffix(path: str | Path, allowed: tuple[str, ...]) -> Path:
    path = Path(path)
    if path.suffix.lower() not in allowed:
        raise LinGlueError(f"{path}: file name ends in {path.suffix!r}, expected {' or '.join(allowed)}")
    return path


def _read(path: Path, needed: tuple[str, ...]) -> Arrays:
    """All arrays of a file, or a LinGlueError that names the file and the first one missing."""
    if not path.is_file():
        raise LinGlueError(f"{path}: no such file")
    try:
        arrays = _read_json(path) if path.suffix.lower() == ".json" else _read_npz(path)
    except Exception as error:  # zip, numpy and json raise many unrelated types on damaged files
        raise LinGlueError(f"{path}: damaged or not a {path.suffix} file of arrays") from error
    for name in needed:
        if name not in arrays:
            raise LinGlueError(f"{path}: {name} is missing, expected {', '.join(needed)}")
    return arrays


def _read_npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _read_json(path: Path) -> Arrays:
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: np.array(value) for name, value in content.items()}
