"""COLMAP's databases: written whole from features and matches, checked, and read back as ours."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import (
    SIFT_DIM,
    bytes_from_root_sift,
    keypoint_rows,
    keypoint_shapes,
    quiet_pycolmap,
    root_sift_from_bytes,
)
from linglue.types import Features, ImageSize, IndexArray

if TYPE_CHECKING:
    import pycolmap

_PURPOSE = "a COLMAP database"
_TABLES = frozenset({"cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries"})
# By table: its key, and the rows that COLMAP would trust and read past their end, or end without a word.
_UNSOUND = {
    "cameras": ("camera_id", "width < 1 OR height < 1 OR ifnull(length(params), 0) % 8 <> 0"),
    "keypoints": ("image_id", "rows < 0 OR cols < 0 OR ifnull(length(data), 0) <> rows * cols * 4"),
    "descriptors": ("image_id", "rows < 0 OR cols < 0 OR ifnull(length(data), 0) <> rows * cols"),
    "matches": ("pair_id", "rows < 0 OR (rows > 0 AND cols <> 2) OR ifnull(length(data), 0) <> rows * 8"),
    "two_view_geometries": ("pair_id", "rows < 0 OR (rows > 0 AND cols <> 2) OR ifnull(length(data), 0) <> rows * 8"),
}
JOURNALS = ("-wal", "-shm")  # SQLite's side files of a database in use


@dataclass(frozen=True)
class DatabaseImage:
    """An image of a COLMAP database."""

    image_id: int
    name: str
    camera_id: int
    size: ImageSize


def write_database(
    path: str | Path,
    cameras: Mapping[str, pycolmap.Camera],
    features: Callable[[str], Features],
    matches: Iterable[tuple[str, str, IndexArray]],
    with_descriptors: bool = False,
) -> None:
    """A database with all images, their keypoints and the matches of pairs, ready for geometric verification.

    Features and matches are asked for one at a time and not kept.

    Args:
        path: the file; one that is there is replaced when all is written.
        cameras: the camera of every image name; one object, or objects of one camera_id, are one camera.
        features: gives those of an image name.
        matches: (name0, name1, (K, 2) indices) of each pair.
        with_descriptors: needed only for COLMAP's own matchers, which take SIFT.
    """
    colmap = quiet_pycolmap(_PURPOSE)
    path = Path(path)
    with atomic_path(path) as temporary:
        temporary.touch()  # says why if it cannot; pycolmap would not
        with _translated(path), colmap.Database.open(temporary) as database:
            images = _write_images(database, cameras)
            counts: dict[str, int] = {}
            for name in progress(cameras, desc="features to database", unit="image"):
                found = features(name)
                counts[name] = len(found)
                database.write_keypoints(images[name], keypoint_rows(found))
                if with_descriptors:
                    database.write_descriptors(images[name], _descriptors(path, name, found))
            for name0, name1, indices in progress(matches, desc="matches to database", unit="pair"):
                _check_matches(path, name0, name1, indices, counts)
                if database.exists_matches(images[name0], images[name1]):
                    raise LinGlueError(f"{path}: pair {name0!r}, {name1!r} is given twice, expected once")
                database.write_matches(images[name0], images[name1], indices.astype(np.uint32))
        for suffix in JOURNALS:  # of the database that is replaced: SQLite would apply them to the new one
            path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def open_database(path: str | Path) -> Iterator[pycolmap.Database]:
    """An existing database; one of an older COLMAP is brought to this version's layout, as COLMAP itself does."""
    path = Path(path)
    check_database(path)
    with _translated(path), quiet_pycolmap(_PURPOSE).Database.open(path) as database:
        yield database


@contextmanager
def readable_database(path: Path) -> Iterator[Path]:
    """Where a database can be opened for reading: pycolmap opens only what it may write, so others are copied.

    Args:
        path: the database; the copy of one that cannot be written lives as long as the block.
    """
    if not path.is_file() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in (path, *(path.with_name(path.name + suffix) for suffix in JOURNALS)):
            if file.is_file():
                shutil.copyfile(file, Path(folder) / file.name)
        yield Path(folder) / path.name


def check_database(path: Path) -> None:
    """Refuse what is not a sound COLMAP database, without changing it.

    pycolmap would create one, or add its tables to another's; and it trusts sizes that a database gives.
    """
    if not path.is_file():
        raise LinGlueError(f"{path}: no such COLMAP database")
    try:
        with closing(read_only(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            missing = sorted(_TABLES - tables)
            if missing:
                raise LinGlueError(f"{path}: not a COLMAP database, it has no table {', '.join(missing)}")
            _check_rows(path, connection)
    except sqlite3.Error as error:
        raise LinGlueError(f"{path}: not a COLMAP database ({error})") from error


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, and leaves no journals where nobody else has the database open."""
    in_use = any(path.with_name(path.name + suffix).exists() for suffix in JOURNALS)
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}", uri=True)


def _check_rows(path: Path, connection: sqlite3.Connection) -> None:
    for table, (key, unsound) in _UNSOUND.items():
        row = connection.execute(f"SELECT {key} FROM {table} WHERE {unsound} LIMIT 1").fetchone()
        if row is not None:
            raise LinGlueError(f"{path}: damaged, {key} {row[0]} in table {table} has data of a wrong size")
    orphan = connection.execute(
        "SELECT name, camera_id FROM images WHERE camera_id NOT IN (SELECT camera_id FROM cameras) LIMIT 1"
    ).fetchone()
    if orphan is not None:
        raise LinGlueError(f"{path}: image {orphan[0]!r} has camera {orphan[1]}, which is not in the database")


def read_images(database: pycolmap.Database) -> dict[str, DatabaseImage]:
    """All images by name, in the order of their names."""
    sizes = {camera.camera_id: ImageSize(camera.width, camera.height) for camera in database.read_all_cameras()}
    images = sorted(database.read_all_images(), key=lambda image: image.name)
    return {i.name: DatabaseImage(i.image_id, i.name, i.camera_id, sizes[i.camera_id]) for i in images}


def read_features(database: pycolmap.Database, image: DatabaseImage) -> Features:
    """The features of an image.

    Args:
        database: COLMAP's, open.
        image: one of `read_images`.

    Returns:
        Of kind "sift" with RootSIFT descriptors, or without any (N, 0) if none are stored.
    """
    try:
        rows = database.read_keypoints(image.image_id)
        points, scales, oris = keypoint_shapes(rows if len(rows) else np.zeros((0, 2), np.float32))
        stored = database.read_descriptors(image.image_id)
        has_descriptors = len(points) > 0 and stored.data.size > 0
        if has_descriptors and (stored.type.name != "SIFT" or stored.data.shape[1] != SIFT_DIM):
            raise LinGlueError(
                f"descriptors are {stored.type.name} with {stored.data.shape[1]} bytes, expected SIFT with {SIFT_DIM}"
            )
        none = np.zeros((len(points), 0), np.float32)
        return Features(
            keypoints=points,
            descriptors=root_sift_from_bytes(stored.data) if has_descriptors else none,
            image_size=image.size,
            scales=scales,
            oris=oris,
            kind="sift" if has_descriptors else "unknown",
        )
    except LinGlueError as error:
        raise LinGlueError(f"image {image.name!r}: {error}") from error


def read_matches(database: pycolmap.Database, image0: DatabaseImage, image1: DatabaseImage) -> IndexArray:
    """The matches of a pair.

    Args:
        database: COLMAP's, open.
        image0: one of `read_images`.
        image1: another.

    Returns:
        (K, 2) indices into the features of the two images, in this order.
    """
    return database.read_matches(image0.image_id, image1.image_id).astype(np.int64)


def _write_images(database: pycolmap.Database, cameras: Mapping[str, pycolmap.Camera]) -> dict[str, int]:
    """Image ids by name. Every camera is a rig by itself and every image a frame of it, as COLMAP's extractor does."""
    colmap = quiet_pycolmap(_PURPOSE)
    written: dict[int, tuple[pycolmap.Camera, int]] = {}  # camera with its id in the database, id of its rig
    images: dict[str, int] = {}
    for name, camera in cameras.items():
        key = id(camera) if camera.camera_id == colmap.INVALID_CAMERA_ID else camera.camera_id
        if key not in written:
            written[key] = _write_camera(database, camera)
        stored, rig_id = written[key]
        image = colmap.Image(name=name, camera_id=stored.camera_id)
        image.image_id = images[name] = database.write_image(image)
        frame = colmap.Frame()
        frame.rig_id = rig_id
        frame.add_data_id(image.data_id)
        database.write_frame(frame)
    return images


def _write_camera(database: pycolmap.Database, camera: pycolmap.Camera) -> tuple[pycolmap.Camera, int]:
    stored = copy(camera)
    stored.camera_id = database.write_camera(camera)
    rig = quiet_pycolmap(_PURPOSE).Rig()
    rig.add_ref_sensor(stored.sensor_id)
    return stored, database.write_rig(rig)


def _descriptors(path: Path, name: str, features: Features) -> pycolmap.FeatureDescriptors:
    if features.kind != "sift" or features.dim != SIFT_DIM:
        raise LinGlueError(
            f"{path}: features of {name!r} are {features.kind!r} with {features.dim} entries, COLMAP's descriptors are "
            f"'sift' with {SIFT_DIM}"
        )
    colmap = quiet_pycolmap(_PURPOSE)
    return colmap.FeatureDescriptors(colmap.FeatureExtractorType.SIFT, bytes_from_root_sift(features.descriptors))


def _check_matches(path: Path, name0: str, name1: str, indices: IndexArray, counts: Mapping[str, int]) -> None:
    """COLMAP trusts what a database says: a wrong index would end it without a word."""
    for name, column in zip((name0, name1), indices.reshape(-1, 2).T, strict=True):
        if name not in counts:
            raise LinGlueError(f"{path}: matches name the image {name!r}, which is not among the {len(counts)} given")
        if len(column) and not 0 <= column.min() <= column.max() < counts[name]:
            raise LinGlueError(
                f"{path}: matches of {name0!r} and {name1!r} point outside the keypoints of {name!r}, "
                f"expected 0 to {counts[name] - 1}"
            )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """What SQLite says through pycolmap becomes one line that names the file."""
    try:
        yield
    except RuntimeError as error:
        if "SQLite" not in str(error) and "database factory" not in str(error):
            raise
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        raise LinGlueError(f"{path}: cannot be used as a COLMAP database ({reason})") from error
