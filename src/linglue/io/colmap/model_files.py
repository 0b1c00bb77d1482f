"""COLMAP's binary model files, checked for sizes that go together: its reader trusts every number and may never end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from linglue.errors import LinGlueError

_COUNT = struct.Struct("<Q")
_POINT = 8 + 3 * 8 + 3 + 8  # bytes: id, position, colour, error; a count and its track follow
_TRACK = 8  # image and keypoint
_IMAGE = 4 + 7 * 8 + 4  # id, pose, camera; a name, a count and its keypoints follow
_KEYPOINT = 3 * 8
_CAMERA = 4 + 4 + 8 + 8  # id, model, size; its parameters follow
_SMALLEST = {"rigs.bin": 8, "frames.bin": 8}  # bytes of an entry


def check_model_files(folder: Path) -> None:
    """Refuse binary model files whose counts do not fit their sizes.

    Args:
        folder: of a model; files that are not there, or are text, are passed over.
    """
    walks: dict[str, Callable[[bytes], bool]] = {
        "cameras.bin": _cameras_fit,
        "images.bin": _images_fit,
        "points3D.bin": _points_fit,
    }
    walks |= {name: partial(_entries_fit, size) for name, size in _SMALLEST.items()}
    for name, fits in walks.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            sound = fits(path.read_bytes())
        except OSError as error:
            raise LinGlueError(f"{path}: cannot be read ({error.strerror}), expected a file of COLMAP") from error
        except (struct.error, ValueError, OverflowError):  # it ends too early
            sound = False
        if not sound:
            raise LinGlueError(f"{path}: damaged, expected a binary model file of COLMAP")


def _count(data: bytes, at: int) -> int:
    return int(_COUNT.unpack_from(data, at)[0])


def _entries_fit(size: int, data: bytes) -> bool:
    return _count(data, 0) * size <= len(data)


def _cameras_fit(data: bytes) -> bool:
    parameters = len(data) - _COUNT.size - _CAMERA * _count(data, 0)
    return parameters >= 0 and parameters % 8 == 0


def _points_fit(data: bytes) -> bool:
    at = _COUNT.size
    for _ in range(_count(data, 0)):
        at += _POINT
        at += _COUNT.size + _TRACK * _count(data, at)
    return at == len(data)


def _images_fit(data: bytes) -> bool:
    at = _COUNT.size
    for _ in range(_count(data, 0)):
        at = data.index(b"\0", at + _IMAGE) + 1  # the end of its name
        at += _COUNT.size + _KEYPOINT * _count(data, at)
    return at == len(data)
