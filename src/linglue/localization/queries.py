"""Images to localize: those of a folder or of a list, and what is known about their cameras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.errors import LinGlueError
from linglue.io.exif import upright_size
from linglue.io.images import IMAGE_SUFFIXES
from linglue.sfm.cameras import CameraConfig, assign_cameras, read_intrinsics
from linglue.sfm.scan import list_images
from linglue.types import ImageSize

if TYPE_CHECKING:
    import pycolmap


@dataclass(frozen=True, eq=False)
class Query:
    """An image to localize."""

    name: str
    path: Path
    camera: pycolmap.Camera
    refine_camera: bool  # its intrinsics are only a guess


def find_queries(source: Path, images: Path | None, intrinsics: str | None) -> tuple[list[Query], list[str]]:
    """The images of a folder, of a list, or one.

    Args:
        source: a folder, an image, or a list with lines `name MODEL width height params…`, as hloc's and Aachen's.
        images: what the names of a list are relative to.
        intrinsics: of the images of a folder (see `CameraConfig`); EXIF or a guess unless given.

    Returns:
        The queries, and one line about each image that cannot be used.
    """
    if source.is_dir():
        if images is not None:
            raise LinGlueError(f"--images is {images}, expected only with a list of queries; {source} is a folder")
        return _from_folder(source, intrinsics)
    if not source.is_file():
        raise LinGlueError(f"{source}: no such file, expected a folder of images or a list of them")
    if source.suffix.lower() in IMAGE_SUFFIXES:
        if images is not None:
            raise LinGlueError(f"--images is {images}, expected only with a list of queries; {source} is an image")
        return _from_paths({source.name: source}, intrinsics)
    if intrinsics is not None:
        raise LinGlueError(f"--intrinsics is {intrinsics}, expected only with a folder; the list {source} has its own")
    if images is None:
        raise LinGlueError(f"{source}: is a list of queries, expected --images and the folder they lie in with it")
    if not images.is_dir():
        raise LinGlueError(f"{images}: no such folder, expected the one that the images of {source} lie in")
    queries, problems = [], []
    for name, camera in read_intrinsics(source).items():
        try:
            size = upright_size(images / name)
            if (camera.width, camera.height) != size:
                raise LinGlueError(
                    f"{source} says {camera.width}x{camera.height} pixels, it has {size.width}x{size.height}"
                )
            queries.append(Query(name, images / name, camera, refine_camera=False))
        except LinGlueError as error:
            problems.append(problem_line(name, images / name, error))
    return queries, problems


def _from_folder(folder: Path, intrinsics: str | None) -> tuple[list[Query], list[str]]:
    paths, problems = list_images(folder)
    if not paths:
        why = f" ({problems[0]})" if problems else ""
        raise LinGlueError(f"{folder}: holds no image{why}, expected {', '.join(sorted(IMAGE_SUFFIXES))}")
    queries, unusable = _from_paths(paths, intrinsics)
    return queries, [*problems, *unusable]


def _from_paths(paths: Mapping[str, Path], intrinsics: str | None) -> tuple[list[Query], list[str]]:
    sizes: dict[str, ImageSize] = {}
    problems = []
    for name, path in paths.items():
        try:
            sizes[name] = upright_size(path)
        except LinGlueError as error:
            problems.append(problem_line(name, path, error))
    if not sizes:
        return [], problems
    config = CameraConfig(sharing="image", intrinsics=intrinsics)
    cameras = assign_cameras({name: paths[name] for name in sizes}, sizes, config)
    queries = [Query(name, paths[name], cameras.by_name[name], name not in cameras.given) for name in sizes]
    return queries, [*problems, *cameras.problems]


def describe_camera(camera: pycolmap.Camera) -> str:
    """MODEL width height params…, as in lists of intrinsics."""
    return " ".join([camera.model.name, str(camera.width), str(camera.height), *map(repr, camera.params.tolist())])


def problem_line(name: str, path: Path, error: LinGlueError) -> str:
    """What is told about an image that cannot be used.

    Args:
        name: of the image.
        path: its file, which is not said twice.
        error: what is wrong with it.
    """
    return f"{name}: left out ({str(error).removeprefix(f'{path}: ')})"
