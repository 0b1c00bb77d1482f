"""Where images were taken, from EXIF or a file of the user's, and which of them are close to each other."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.io.exif import LatLon, on_earth, read_exif
from linglue.io.pair_list import Pair, make_pair

Positions = dict[str, NDArray[np.float64]]  # (3,) metres in one Cartesian frame, by image name

_METRIC = ("name", "x", "y", "z")
_GEOGRAPHIC = (("name", "lat", "lon"), ("name", "lat", "lon", "alt"))


def exif_positions(images: Mapping[str, Path]) -> Positions:
    """Positions of the images (path by name) that carry GPS coordinates, see `metric_positions`."""
    located = {}
    for name, path in images.items():
        exif = read_exif(path)
        if exif is not None and exif.gps is not None:
            located[name] = exif.gps
    return metric_positions(located)


def read_positions(path: str | Path) -> Positions:
    """Positions from a table with tabs or commas whose first line names the columns.

    `name x y z` are metres, `name lat lon` or `name lat lon alt` are degrees (WGS84), see `metric_positions`.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: cannot be read, expected a UTF-8 table of positions") from error
    header = lines[0] if lines else ""
    tabs = "\t" in header
    # In a table with tabs names are as they are; with commas they may be quoted.
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines)
    columns = tuple(column.strip().lower() for column in next(rows, []))
    if columns != _METRIC and columns not in _GEOGRAPHIC:
        raise LinGlueError(
            f"{path}: first line is {header!r}, expected the column names `name x y z` or `name lat lon [alt]` "
            "with tabs or commas between them"
        )
    values: dict[str, tuple[float, ...]] = {}
    for row in rows:
        if not row:
            continue
        where = f"{path}: line {rows.line_num}"
        if len(row) != len(columns):
            raise LinGlueError(f"{where} has {len(row)} entries, expected {len(columns)}: {' '.join(columns)}")
        name, numbers = row[0], tuple(_number(entry) for entry in row[1:])
        if not all(map(math.isfinite, numbers)):
            raise LinGlueError(f"{where} has {' '.join(row[1:])!r} for {name!r}, expected finite numbers")
        if columns != _METRIC and not on_earth(*numbers[:2]):
            raise LinGlueError(f"{where} has {' '.join(row[1:3])!r}, expected lat −90 to 90 and lon −180 to 180")
        if name in values:
            raise LinGlueError(f"{where} has {name!r} a second time, expected one position per image")
        values[name] = numbers
    if columns == _METRIC:
        return {name: np.array(numbers) for name, numbers in values.items()}
    return metric_positions({name: (numbers[0], numbers[1]) for name, numbers in values.items()})


def metric_positions(located: Mapping[str, LatLon]) -> Positions:
    """East, north and up in metres from the first image by name.

    Altitude is taken as zero: it is missing in many images and off by tens of metres in others.
    """
    if not located:
        return {}
    pycolmap = need("pycolmap", "pairs from GPS coordinates")
    names = sorted(located)
    lat_lon_alt = np.array([(*located[name], 0.0) for name in names])  # (N, 3)
    enu = pycolmap.GPSTransform().ellipsoid_to_enu(lat_lon_alt, *lat_lon_alt[0])  # (N, 3)
    return dict(zip(names, np.asarray(enu), strict=True))


def position_pairs(positions: Mapping[str, NDArray[np.float64]], top: int, radius: float) -> list[Pair]:
    """Every image with its nearest ones, sorted.

    Args:
        positions: (3,) metres, by name.
        top: partners per image at most.
        radius: metres at which a partner is too far away.
    """
    if len(positions) < 2:
        return []
    names = sorted(positions)
    points = np.stack([positions[name] for name in names])  # (N, 3)
    _, nearest = cKDTree(points).query(points, k=top + 1, distance_upper_bound=radius)  # (N, top + 1), N where none
    pairs = set()
    for i, row in enumerate(nearest):
        others = [j for j in row if j != i and j < len(names)]  # at one position the image itself need not come first
        pairs |= {make_pair(names[i], names[j]) for j in others[:top]}
    return sorted(pairs)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
