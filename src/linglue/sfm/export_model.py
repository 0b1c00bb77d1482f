"""A finished model for other programs: points as PLY, COLMAP's text files, undistorted images for splatting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image

from linglue.core.atomic import atomic_folder
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.images import read_image
from linglue.io.ply import Cloud, write_ply
from linglue.sfm.sparse_model import check_written, read_model, registered_names

if TYPE_CHECKING:
    import pycolmap

JPEG_QUALITY = 96  # of images that must be written anew

POINTS = "points.ply"
UPRIGHT = "upright"  # folder of links to the images, while they are undistorted
_PURPOSE = "a 3D model"


def export_ply(model: Path, target: Path) -> None:
    """The points of a model, with their colours, as a PLY file.

    Args:
        model: folder of the model.
        target: the file, replaced if it is there.
    """
    write_ply(target, _cloud(read_model(model)))


def export_text(model: Path, target: Path) -> None:
    """The model as COLMAP's text files.

    Args:
        model: its folder.
        target: a new folder.
    """
    found = read_model(model)
    spaced = next((name for name in registered_names(found) if len(name.split()) != 1), None)
    if spaced is not None:
        raise LinGlueError(f"{model}: {spaced!r} has white space, expected names without: COLMAP's text cannot hold it")
    with new_folder(target) as partial:
        found.write_text(partial)
        check_written(found, partial)


def export_undistorted(model: Path, images: Mapping[str, Path], target: Path) -> int:
    """Undistorted images and their model in a new folder: images/ and sparse/0/ as 3DGS reads them, and nerfstudio's
    transforms.json with points.ply.

    Args:
        model: folder of the model.
        images: files of the registered images by name; rotated upright as the model has them.
        target: must not exist.

    Returns:
        the number of images.
    """
    names = check_images(model, images)
    with new_folder(target) as partial:
        for name in names:
            _link_upright(images[name], partial / UPRIGHT / name)
        quiet_pycolmap(_PURPOSE).undistort_images(partial, model, partial / UPRIGHT, jpeg_quality=JPEG_QUALITY)
        models = [file for file in (partial / "sparse").iterdir() if file.is_file()]
        (partial / "sparse" / "0").mkdir()
        for file in models:
            file.rename(partial / "sparse" / "0" / file.name)
        for entry in list(partial.iterdir()):  # the images as they were, and COLMAP's scripts for dense stereo
            if entry.name not in ("images", "sparse"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        undistorted = _check_undistorted(partial, names)
        write_ply(partial / POINTS, _cloud(undistorted))
        text = json.dumps(_transforms(undistorted), indent=1, ensure_ascii=False)
        (partial / "transforms.json").write_text(text + "\n", encoding="utf-8")
    return len(names)


def check_images(model: Path, images: Mapping[str, Path]) -> list[str]:
    """The names of the images of a model, refused where any file is missing.

    Args:
        model: its folder.
        images: files by name.
    """
    names = registered_names(read_model(model))
    missing = [name for name in names if name not in images or not images[name].is_file()]
    if missing:
        raise LinGlueError(f"{model}: {len(missing)} of its images are not found, e.g. {missing[0]}, expected --images")
    return names


def _cloud(model: pycolmap.Reconstruction) -> Cloud:
    """The points of a model; they have no normals."""
    points = [model.point3D(number) for number in sorted(model.point3D_ids())]
    places = np.array([point.xyz for point in points]).reshape(-1, 3)
    return Cloud(places, np.array([point.color for point in points], np.uint8).reshape(-1, 3), np.zeros_like(places))


def _check_undistorted(folder: Path, names: Sequence[str]) -> pycolmap.Reconstruction:
    """The model of undistorted images that COLMAP wrote; it does not notice a full disk."""
    try:
        for name in names:
            with Image.open(folder / "images" / name) as image:
                image.load()
        return read_model(folder / "sparse" / "0")
    except (OSError, SyntaxError, LinGlueError) as error:  # what Pillow says about files that were cut
        raise OSError("not whole, the disk may be full") from error


def _transforms(model: pycolmap.Reconstruction) -> dict[str, Any]:
    """What nerfstudio and instant-ngp read: a pinhole camera and a pose (world from camera, y up, z back) per image."""
    frames = []
    for image in sorted(map(model.image, model.reg_image_ids()), key=lambda image: str(image.name)):
        camera = model.camera(image.camera_id)
        fx, fy, cx, cy = (float(value) for value in camera.params)  # of a PINHOLE, as undistorting leaves them
        pose = np.vstack([image.cam_from_world().inverse().matrix(), [0, 0, 0, 1]]) * [1, -1, -1, 1]  # (4, 4)
        frames.append(
            {
                "file_path": f"images/{image.name}",
                "transform_matrix": pose.tolist(),
                **{"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": camera.width, "h": camera.height},
            }
        )
    return {"camera_model": "OPENCV", "ply_file_path": POINTS, "frames": frames}


def _link_upright(source: Path, target: Path) -> None:
    """COLMAP ignores EXIF rotation: an image that has one is written anew, the others are only linked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    pixels = read_image(source)
    stored = cv2.imread(str(source), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if stored is not None and stored.shape == pixels.shape and (stored[..., ::-1] == pixels).all():
        target.symlink_to(source.absolute())
    elif not cv2.imwrite(str(target), pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]):
        raise LinGlueError(f"{target}: cannot be written upright, expected an image format that OpenCV writes")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write to that takes the name of `target`, which must not exist, when the block ends well."""
    check_new_folder(target)
    try:
        with atomic_folder(target) as partial:
            yield partial
    except RuntimeError as error:
        raise LinGlueError(f"{target}: cannot be written ({str(error).splitlines()[0]})") from error


def check_new_folder(target: Path) -> None:
    """Refuse a folder that exists and is not empty."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise LinGlueError(f"{target}: exists already, expected a new folder")
    if not target.absolute().parent.is_dir():
        raise LinGlueError(f"{target}: its folder does not exist, expected a new folder in an existing one")
