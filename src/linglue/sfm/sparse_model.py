"""A finished sparse model: its numbers, its colours, its folder, and how far it is from the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linglue.core.atomic import atomic_folder, temporary_folder
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.colmap.model_files import check_model_files
from linglue.io.images import read_image

if TYPE_CHECKING:
    import pycolmap

_PURPOSE = "a 3D model"


@dataclass(frozen=True)
class ModelStatistics:
    """What the ETH benchmark reports of a model."""

    images: int  # that were given
    registered: int  # that have a pose
    points: int
    observations: int
    track_length: float  # mean observations per point
    observations_per_image: float  # mean over registered images
    reprojection_error: float  # pixels, mean over points

    @classmethod
    def of(cls, model: pycolmap.Reconstruction, images: int) -> ModelStatistics:
        """The numbers of a model that was made from so many images."""
        return cls(
            images=images,
            registered=model.num_reg_images(),
            points=model.num_points3D(),
            observations=model.compute_num_observations(),
            track_length=model.compute_mean_track_length(),
            observations_per_image=model.compute_mean_observations_per_reg_image(),
            reprojection_error=model.compute_mean_reprojection_error(),
        )


def registered_names(model: pycolmap.Reconstruction) -> list[str]:
    """Images with a pose, sorted."""
    return sorted(model.image(number).name for number in model.reg_image_ids())


def colour_points(model: pycolmap.Reconstruction, paths: Mapping[str, Path]) -> None:
    """Give each point the mean colour of the pixels that show it.

    Args:
        model: its points are changed.
        paths: image files by name, read upright; images without one add no colour.
    """
    ids = np.array(sorted(model.point3D_ids()), dtype=np.uint64)
    sums, counts = np.zeros((len(ids), 3)), np.zeros(len(ids))
    for number in progress(model.reg_image_ids(), desc="colours", unit="image"):
        image = model.image(number)
        observed = image.get_observation_points2D()
        if not len(observed) or image.name not in paths:
            continue
        rows = np.searchsorted(ids, np.array([point.point3D_id for point in observed], dtype=np.uint64))
        pixels = read_image(paths[image.name])
        # COLMAP counts from the corner of the top-left pixel: the whole part is the pixel that holds the point.
        x, y = np.array([point.xy for point in observed]).astype(np.int64).T
        height, width = pixels.shape[:2]
        np.add.at(sums, rows, pixels[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)])
        np.add.at(counts, rows, 1)
    means = np.rint(sums / np.maximum(counts, 1)[:, None]).astype(np.uint8)
    for point_id, mean in zip(ids.tolist(), means, strict=True):
        model.point3D(point_id).color = mean


def write_model(model: pycolmap.Reconstruction, folder: Path) -> None:
    """Write COLMAP's binary files.

    Args:
        model: to be written.
        folder: a new one appears whole; in an old one these files are replaced.
    """
    try:
        if not folder.exists():
            with atomic_folder(folder) as temporary:
                model.write_binary(temporary)
                check_written(model, temporary)
            return
        with temporary_folder(folder) as written:
            model.write_binary(written)
            check_written(model, written)
            for file in written.iterdir():
                file.replace(folder / file.name)
    except (OSError, RuntimeError) as error:
        raise LinGlueError(f"{folder}: the model cannot be written ({str(error).splitlines()[0]})") from error


def read_model(folder: Path) -> pycolmap.Reconstruction:
    """A model in COLMAP's binary or text files."""
    if not folder.is_dir():
        raise LinGlueError(f"{folder}: no such folder, expected one with a COLMAP model")
    check_model_files(folder)
    try:
        return quiet_pycolmap(_PURPOSE).Reconstruction(folder)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        raise LinGlueError(f"{folder}: holds no COLMAP model that can be read ({reason})") from error


def check_written(model: pycolmap.Reconstruction, folder: Path) -> None:
    """Refuse what COLMAP wrote if it is not the whole model: it does not notice a full disk.

    Args:
        model: that was written.
        folder: of its files, binary or text.
    """

    def counts(of: pycolmap.Reconstruction) -> tuple[int, ...]:
        return of.num_cameras(), of.num_reg_images(), of.num_points3D(), of.compute_num_observations()

    try:
        whole = counts(read_model(folder)) == counts(model)
    except LinGlueError:
        whole = False
    if not whole:
        raise OSError("not whole, the disk may be full")


def aligned_errors(
    model: pycolmap.Reconstruction, truth: Mapping[str, NDArray[np.float64]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of the registered cameras by image name, after the similarity that best aligns their positions.

    Args:
        model: with at least three images that have a true pose.
        truth: (3, 4) cam_from_world by image name; images without truth are left out.

    Returns:
        The distances of positions in the truth's unit, and the angles of rotations in degrees.
    """
    pycolmap = quiet_pycolmap(_PURPOSE)
    names = [name for name in registered_names(model) if name in truth]
    if len(names) < 3:
        raise LinGlueError(f"{len(names)} registered images have a true pose, expected at least 3 to align a model")
    poses = {image.name: image.cam_from_world() for image in map(model.image, model.reg_image_ids())}
    true = {name: pycolmap.Rigid3d(np.asarray(truth[name], dtype=np.float64)) for name in names}
    true_from_model = pycolmap.estimate_sim3d(
        np.array([poses[name].inverse().translation for name in names]),
        np.array([true[name].inverse().translation for name in names]),
    )
    if true_from_model is None:
        raise LinGlueError(
            f"the {len(names)} cameras with a true pose lie at one point or on a line: cannot be aligned"
        )
    positions, angles = {}, {}
    for name in names:
        position = true_from_model * poses[name].inverse().translation
        positions[name] = float(np.linalg.norm(position - true[name].inverse().translation))
        rotated = poses[name].rotation * true_from_model.rotation.inverse()
        angles[name] = float(np.rad2deg((rotated * true[name].rotation.inverse()).angle()))
    return positions, angles
