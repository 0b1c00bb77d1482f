"""The scene_info files of MegaDepth: which images, depths, cameras and pairs there are. Read without trusting them.

Two kinds are about. D2-Net's and glue-factory's are .npz archives with an `overlap_matrix`; LoFTR's bear the same
suffix, but are a pickled dictionary with `pair_infos`. Both need pickle for their lists with holes (None), and pickle
runs what a file tells it to: here it may make numpy arrays, and nothing else.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.colmap import matrix_from_colmap

REQUIRED = ("image_paths", "depth_paths", "intrinsics", "poses")
PAIRS = ("overlap_matrix", "pair_infos")
_HARMLESS = {
    (package, name)
    for core in ("numpy.core", "numpy._core")
    for package, name in (
        (f"{core}.multiarray", "_reconstruct"),
        (f"{core}.multiarray", "scalar"),
        (f"{core}.numeric", "_frombuffer"),
    )
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


@dataclass(frozen=True, eq=False)
class SceneInfo:
    """One file: images by number, and the pairs among them that have everything."""

    name: str
    images: list[str | None]  # paths below the root
    depths: list[str | None]
    intrinsics: list[Any]  # (3, 3) of pixel centres at integers, at the size of the depth map
    poses: list[Any]  # (4, 4) cam_from_world
    pairs: NDArray[np.int64]  # (P, 2)
    overlaps: NDArray[np.float64]  # (P,)


def read_scene_info(path: Path) -> SceneInfo:
    """Read one scene_info file."""
    try:
        entries = _read(path)
        return _scene_info(path.stem, entries)
    except LinGlueError:
        raise
    except Exception as error:  # damaged archives and pickles raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise LinGlueError(f"{path}: not a MegaDepth scene_info file ({reason})") from error


def _scene_info(name: str, entries: Mapping[str, Any]) -> SceneInfo:
    images, depths = ([None if p is None else str(p) for p in entries[key]] for key in ("image_paths", "depth_paths"))
    have = np.array([i is not None and d is not None for i, d in zip(images, depths, strict=True)], dtype=np.bool_)
    if "overlap_matrix" in entries:
        overlap = np.asarray(entries["overlap_matrix"], dtype=np.float64)
        if overlap.shape != (len(images), len(images)):
            raise ValueError(f"overlap_matrix has shape {overlap.shape}, expected {(len(images), len(images))}")
        pairs = np.argwhere(np.triu(overlap > 0, 1)).astype(np.int64)
        overlaps = overlap[pairs[:, 0], pairs[:, 1]]
    else:
        infos = list(entries["pair_infos"])
        pairs = np.array([tuple(info[0]) for info in infos], dtype=np.int64).reshape(-1, 2)
        overlaps = np.array([info[1] for info in infos], dtype=np.float64)
    whole = have[pairs].all(axis=1)
    return SceneInfo(
        name,
        images,
        depths,
        [
            matrix_from_colmap(np.reshape(k, (3, 3))) if ok else None
            for k, ok in zip(entries["intrinsics"], have, strict=True)
        ],
        [
            np.reshape(p, (4, 4)).astype(np.float64) if ok else None
            for p, ok in zip(entries["poses"], have, strict=True)
        ],
        pairs[whole],
        overlaps[whole],
    )


def _read(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as stream:
            entries = _Unpickler(stream).load()
    else:
        with zipfile.ZipFile(path) as archive:
            names = [f"{name}.npy" for name in (*REQUIRED, *PAIRS)]
            entries = {}
            for name in set(names) & set(archive.namelist()):
                with archive.open(name) as stream:
                    entries[name.removesuffix(".npy")] = _read_array(stream)
    if not isinstance(entries, dict):
        raise LinGlueError(f"{path}: holds {type(entries).__name__}, expected a MegaDepth scene_info file")
    missing = [name for name in REQUIRED if name not in entries]
    if not any(name in entries for name in PAIRS):
        missing.append(" or ".join(PAIRS))
    if missing:
        raise LinGlueError(f"{path}: lacks {', '.join(missing)}, expected a MegaDepth scene_info file")
    return entries


def _read_array(stream: IO[bytes]) -> Any:
    """An array in numpy's own format, with objects if need be."""
    read_header = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(stream)[0] != 1:
        read_header = np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read_header(stream)
    if dtype.hasobject:
        return _Unpickler(stream).load()
    values = np.frombuffer(stream.read(), dtype=dtype)
    return values.reshape(shape, order="F" if columns_first else "C")


class _Unpickler(pickle.Unpickler):
    """Makes numpy arrays and plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"asks for {module}.{name}")
        return super().find_class(module, name)
