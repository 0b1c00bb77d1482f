"""Point clouds as PLY files, binary, with colours and normals: what MeshLab, CloudCompare and Blender read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError

_LAYOUT = np.dtype(
    [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")] + [(name, "u1") for name in ("red", "green", "blue")]
)
_TYPES = {"<f4": "float", "|u1": "uchar"}


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points with colours and normals."""

    points: NDArray[np.float64]  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3) RGB
    normals: NDArray[np.float64]  # (N, 3) of length 1, or 0 where they are unknown

    def __len__(self) -> int:
        return len(self.points)


def write_ply(path: Path, cloud: Cloud) -> None:
    """Write a cloud; the file appears whole."""
    rows = np.empty(len(cloud), dtype=_LAYOUT)
    columns = np.concatenate([cloud.points, cloud.normals, cloud.colours], axis=1)
    for column, name in zip(columns.T, _LAYOUT.names or (), strict=True):
        rows[name] = column
    with atomic_path(path) as partial:
        partial.write_bytes(_header(len(rows)) + rows.tobytes())


def read_ply(path: Path) -> Cloud:
    """Read what `write_ply` wrote."""
    content = path.read_bytes()
    head, mark, body = content.partition(b"end_header\n")
    words = head.split()
    count = int(words[words.index(b"vertex") + 1]) if b"vertex" in words[:-1] else -1
    if not mark or head + mark != _header(count) or len(body) != count * _LAYOUT.itemsize:
        raise LinGlueError(f"{path}: damaged or another program's, expected a PLY file of `linglue dense`")
    rows = np.frombuffer(body, dtype=_LAYOUT)
    parts = [np.column_stack([rows[name] for name in names]) for names in (("x", "y", "z"), ("nx", "ny", "nz"))]
    colours = np.column_stack([rows[name] for name in ("red", "green", "blue")])
    return Cloud(parts[0].astype(np.float64), colours, parts[1].astype(np.float64))


def _header(count: int) -> bytes:
    fields = [f"property {_TYPES[_LAYOUT[name].str]} {name}" for name in _LAYOUT.names or ()]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}", *fields, "end_header"]
    return ("\n".join(lines) + "\n").encode()
