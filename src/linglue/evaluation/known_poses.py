"""Scenes with known cameras, and sparse models of them: poses are the truth, only points come from our matches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_camera, colmap_from_pixel, quiet_pycolmap
from linglue.geometry.epipolar import epipolar_distances, essential_matrix
from linglue.geometry.pose import Pose
from linglue.io.colmap.database import open_database, read_images, write_database
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.pair_list import Pair
from linglue.io.views import read_view
from linglue.sfm.sparse_model import read_model
from linglue.types import Features, IndexArray

if TYPE_CHECKING:
    import pycolmap

REFERENCE_SIDE = 1600  # pixels of the longer side at which the threshold is meant
MAX_EPIPOLAR_ERROR = 4.0  # pixels, in both images: farther from the true epipolar line, a match makes no point
_PURPOSE = "a scene with known cameras"
ETH3D_IMAGES = Path("images") / "dslr_images_undistorted"
ETH3D_MODEL = "dslr_calibration_undistorted"
_MODEL_FILES = ("images.bin", "images.txt")


@dataclass(frozen=True, eq=False)
class KnownView:
    """The camera and the true pose of an image."""

    camera: pycolmap.Camera
    cam_from_world: Pose


@dataclass(frozen=True, eq=False)
class KnownScene:
    """Images with known cameras."""

    name: str
    images: Path  # folder that the names of the views are relative to
    views: dict[str, KnownView]  # by image name


def is_eth3d(folder: Path) -> bool:
    """Whether a folder is a scene of ETH3D, undistorted.

    Args:
        folder: of the scene.
    """
    return (folder / ETH3D_MODEL).is_dir() and (folder / ETH3D_IMAGES).is_dir()


def load_known_scene(folder: Path, model: Path | None = None) -> KnownScene:
    """A scene whose cameras are known.

    Args:
        folder: with images/ and gt/ (see `linglue.io.views`), with images/ and a COLMAP model, or a scene of ETH3D.
        model: the COLMAP model, where the folder has several or none.
    """
    if model is None and is_eth3d(folder):
        views = views_of(read_model(folder / ETH3D_MODEL))
        plain = {PurePosixPath(name).name: view for name, view in views.items()}
        return KnownScene(folder.resolve().name, folder / ETH3D_IMAGES, plain)
    images = folder / "images"
    if not images.is_dir():
        raise LinGlueError(f"{images}: no such folder, expected a scene with images/ and gt/ or a COLMAP model")
    name = folder.resolve().name
    if model is None and (folder / "gt").is_dir():
        paths = sorted(path for path in images.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
        return KnownScene(name, images, {p.name: _read_view(folder / "gt" / f"{p.name}.txt") for p in paths})
    return KnownScene(name, images, views_of(read_model(model or find_model(folder))))


def find_model(folder: Path) -> Path:
    """The one folder below that holds a COLMAP model.

    Args:
        folder: to search.
    """
    found = sorted({path.parent for name in _MODEL_FILES for path in folder.rglob(name)})
    if len(found) != 1:
        which = ": " + ", ".join(str(path.relative_to(folder)) for path in found) if found else ""
        raise LinGlueError(f"{folder}: holds {len(found)} COLMAP models{which}; expected one, or --model")
    return found[0]


def views_of(model: pycolmap.Reconstruction) -> dict[str, KnownView]:
    """The registered images of a model, sorted by name.

    Args:
        model: with poses.
    """
    images = sorted(map(model.image, model.reg_image_ids()), key=lambda image: image.name)
    return {
        image.name: KnownView(model.camera(image.camera_id), Pose.from_matrix(image.cam_from_world().matrix()))
        for image in images
    }


def _read_view(path: Path) -> KnownView:
    truth = read_view(path)
    try:
        return KnownView(colmap_from_camera(truth.camera), truth.cam_from_world)
    except LinGlueError as error:
        raise LinGlueError(f"{path}: {error}") from error


def write_known_database(
    path: Path,
    views: Mapping[str, KnownView],
    features: Callable[[str], Features],
    pairs: Sequence[Pair],
    matches: Callable[[str, str], IndexArray],
) -> None:
    """COLMAP's database of the views, with those of the matches (K, 2) verified that agree with the true poses.

    Args:
        path: of the database.
        views: cameras and poses by image name.
        features: of an image by name.
        pairs: of image names.
        matches: (K, 2) indices of a pair.
    """
    keypoints = {name: colmap_from_pixel(features(name).keypoints.astype(np.float64)) for name in views}
    cameras = {name: view.camera for name, view in views.items()}
    write_database(path, cameras, features, ((*pair, matches(*pair)) for pair in pairs))
    pycolmap = quiet_pycolmap(_PURPOSE)
    with open_database(path) as database, pycolmap.DatabaseTransaction(database):
        ids = {name: image.image_id for name, image in read_images(database).items()}
        for name0, name1 in pairs:
            view0, view1, indices = views[name0], views[name1], matches(name0, name1)
            points0, points1 = keypoints[name0][indices[:, 0]], keypoints[name1][indices[:, 1]]
            geometry = pycolmap.TwoViewGeometry()
            geometry.config = pycolmap.TwoViewGeometryConfiguration.CALIBRATED.value
            geometry.inlier_matches = indices[_agree(view0, view1, points0, points1)].astype(np.uint32)
            database.write_two_view_geometry(ids[name0], ids[name1], geometry)


def _agree(view0: KnownView, view1: KnownView, points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
    """(K,) whether matches, in COLMAP's pixels, lie on the epipolar lines of the true poses."""
    essential = essential_matrix(view1.cam_from_world @ view0.cam_from_world.inverse)
    rays = [view.camera.cam_from_img(points) for view, points in ((view0, points0), (view1, points1))]
    fits = np.ones(len(points0), dtype=np.bool_)
    for view, distances in zip((view0, view1), epipolar_distances(essential, *rays), strict=True):
        allowed = MAX_EPIPOLAR_ERROR * max(view.camera.width, view.camera.height) / REFERENCE_SIDE
        fits &= distances <= view.camera.cam_from_img_threshold(allowed)
    return fits


def triangulate(database: Path, views: Mapping[str, KnownView], seed: int = 0) -> pycolmap.Reconstruction:
    """The sparse model of some views of a database of `write_known_database`; the others have no influence.

    Args:
        database: of `write_known_database`.
        views: those that make the model.
        seed: of COLMAP.
    """
    pycolmap = quiet_pycolmap(_PURPOSE)
    model = pycolmap.Reconstruction()
    with open_database(database) as opened:
        images = read_images(opened)
        for camera in opened.read_all_cameras():
            model.add_camera_with_trivial_rig(camera)
    for name, view in views.items():
        image = pycolmap.Image(name=name, camera_id=images[name].camera_id, image_id=images[name].image_id)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(view.cam_from_world.matrix))
    options = pycolmap.IncrementalPipelineOptions()
    options.image_names = list(views)
    options.extract_colors = False
    options.random_seed = seed
    options.num_threads = os.cpu_count() or 1
    options.triangulation.ignore_two_view_tracks = len(views) > 2  # else two images have no point
    with tempfile.TemporaryDirectory() as unused:
        return pycolmap.triangulate_points(model, database, unused, unused, options=options)
