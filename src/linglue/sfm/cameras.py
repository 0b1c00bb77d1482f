"""Intrinsics of images, as COLMAP's cameras: given by the user, or a first guess from EXIF, and who shares them.

Everything here is in COLMAP's convention: principal points count from the corner of the top-left pixel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.exif import Exif, read_exif
from linglue.types import ImageSize

if TYPE_CHECKING:
    import pycolmap

Sharing = Literal["auto", "single", "folder", "image"]

DEFAULT_FOCAL = 1.2  # times the longer side, where nothing is known: COLMAP's own guess
FOCAL_RANGE = (0.1, 10.0)  # times the longer side: COLMAP drops images whose camera is outside
MAX_EXTRA = 10.0  # largest distortion coefficient that is a number and no slip of the columns
_PURPOSE = "a 3D model"
_PINHOLE = "PINHOLE"
_LINE = re.compile(r"\s*(?P<name>\S.*?)\s+(?P<rest>[A-Za-z]\w*(\s+[-+.\deE]+){3,})\s*")
_UNUSABLE = ("INVALID", "EQUIRECTANGULAR")  # a panorama has no focal length


@dataclass(frozen=True)
class CameraConfig:
    """Which camera each image has.

    `sharing` of estimated intrinsics: "single" camera for all images, one per "folder", one per "image", or
    "auto": within a folder, images of the same size and EXIF camera and focal length; without EXIF, all of a
    folder if they have one size, as frames of a video do. Images of different sizes never share.
    """

    model: str = "SIMPLE_RADIAL"  # COLMAP's name; for cameras that are not given in full
    sharing: Sharing = "auto"
    intrinsics: str | None = None  # "fx,fy,cx,cy" or "MODEL,p1,p2,…" of all images, or a file; see `read_intrinsics`

    def __post_init__(self) -> None:
        _check_model(self.model, "camera model")
        if self.sharing not in get_args(Sharing):
            raise LinGlueError(f"camera sharing is {self.sharing!r}, expected {', '.join(get_args(Sharing))}")
        if self.intrinsics is not None and "," not in self.intrinsics and not Path(self.intrinsics).is_file():
            raise LinGlueError(
                f"{self.intrinsics}: no such file of intrinsics, expected a file, fx,fy,cx,cy and MODEL,p1,p2,…"
            )
        if self.intrinsics is not None:  # all that can be wrong without knowing the images is said at once
            read_intrinsics(Path(self.intrinsics)) if Path(self.intrinsics).is_file() else _parse(self.intrinsics)


@dataclass(frozen=True, eq=False)
class Cameras:
    """The camera of each image by its name; images that share one have the same object."""

    by_name: dict[str, pycolmap.Camera]
    given: frozenset[str]  # names whose intrinsics the user gave: they are kept as they are
    problems: list[str] = field(default_factory=list)  # one line about each thing users should know


def assign_cameras(paths: Mapping[str, Path], sizes: Mapping[str, ImageSize], config: CameraConfig) -> Cameras:
    """The cameras of all images.

    Args:
        paths: image files by name, where they are known; read only where intrinsics are not given.
        sizes: upright, by name, of all images.
        config: what is given, and who shares.
    """
    given, problems = _given_cameras(sizes, config)
    guessed = {name: size for name, size in sizes.items() if name not in given}
    return Cameras({**given, **_estimated_cameras(paths, guessed, config)}, frozenset(given), problems)


def read_intrinsics(path: Path) -> dict[str, pycolmap.Camera]:
    """Cameras by image name from lines `name MODEL width height params…`, as hloc's query lists have them.

    Names may contain spaces, between spaces or tabs. Blank lines and those that begin with # are skipped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: cannot be read as a list of intrinsics ({error})") from error
    cameras: dict[str, Any] = {}
    shared: dict[tuple[str, ...], Any] = {}  # by all that follows the name
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}: line {number}"
        name, fields = _split(line, where)
        if name in cameras:
            raise LinGlueError(f"{where}: {name!r} is given twice, expected one line per image")
        if fields not in shared:
            size = ImageSize(_whole(fields[1], where, "width"), _whole(fields[2], where, "height"))
            shared[fields] = _make_camera(fields[0], _numbers(fields[3:], where), size, where)
        cameras[name] = shared[fields]
    if not cameras:
        raise LinGlueError(f"{path}: holds no intrinsics, expected lines `name MODEL width height params…`")
    return cameras


def _given_cameras(sizes: Mapping[str, ImageSize], config: CameraConfig) -> tuple[dict[str, Any], list[str]]:
    """Cameras of the images whose intrinsics are known, and what is to be said about the others."""
    if config.intrinsics is None:
        return {}, []
    path = Path(config.intrinsics)
    if not path.is_file():
        return _one_for_all(sizes, config.intrinsics)
    listed = read_intrinsics(path)
    for name in sorted(listed.keys() & sizes.keys()):
        camera, size = listed[name], sizes[name]
        if (camera.width, camera.height) != size:
            raise LinGlueError(
                f"{path}: {name!r} is said to be {camera.width}x{camera.height} pixels, expected its upright size "
                f"{size.width}x{size.height}"
            )
    problems = [f"{name}: not in {path}, its intrinsics are estimated" for name in sorted(sizes.keys() - listed.keys())]
    return {name: listed[name] for name in sizes if name in listed}, problems


def _one_for_all(sizes: Mapping[str, ImageSize], text: str) -> tuple[dict[str, Any], list[str]]:
    """The camera that `text` describes, for all images of the most frequent size."""
    model, params = _parse(text)
    size, _ = Counter(sorted(sizes.values())).most_common(1)[0]
    camera = _make_camera(model, params, size, f"intrinsics {text!r}")
    problems = [
        f"{name}: is {other.width}x{other.height} pixels, the given intrinsics are of {size.width}x{size.height}; "
        "its own are estimated"
        for name, other in sorted(sizes.items())
        if other != size
    ]
    return {name: camera for name, other in sizes.items() if other == size}, problems


def _parse(text: str) -> tuple[str, list[float]]:
    """Model and parameters of fx,fy,cx,cy or MODEL,p1,p2,…"""
    where = f"intrinsics {text!r}"
    fields = [part.strip() for part in text.split(",")]
    model = fields.pop(0) if fields[0][:1].isalpha() and fields[0].lower() not in ("nan", "inf") else _PINHOLE
    params = _numbers(fields, where)
    _check_count(model, params, where)
    return model, params


def _estimated_cameras(
    paths: Mapping[str, Path], sizes: Mapping[str, ImageSize], config: CameraConfig
) -> dict[str, Any]:
    """Cameras with the focal length of EXIF, or a guess, for the mapper to refine."""
    exif = {
        name: read_exif(paths[name]) if name in paths else None
        for name in progress(sizes, desc="cameras", unit="image", leave=False)
    }
    keys = _sharing_keys(exif, sizes, config.sharing)
    focals: dict[tuple[object, ...], list[float]] = {key: [] for key in keys.values()}  # known ones, by camera
    of_sensor: dict[object, float | None] = {}  # by EXIF camera
    for name, key in keys.items():
        focal = _focal(paths.get(name), exif[name], of_sensor)
        if focal is not None:
            focals[key].append(focal)
    pycolmap = quiet_pycolmap(_PURPOSE)
    made: dict[tuple[object, ...], Any] = {}
    for name, key in keys.items():
        if key not in made:
            size, known = sizes[name], focals[key]
            start = float(np.median(known)) if known else DEFAULT_FOCAL * max(size)
            camera = pycolmap.Camera.create_from_model_name(
                pycolmap.INVALID_CAMERA_ID, config.model, start, size.width, size.height
            )
            camera.has_prior_focal_length = bool(known)
            made[key] = camera
    return {name: made[key] for name, key in keys.items()}


def _focal(path: Path | None, exif: Exif | None, of_sensor: dict[object, float | None]) -> float | None:
    """Pixels, where EXIF tells; COLMAP knows the sensors of many cameras whose millimetres alone would not."""
    if path is None or exif is None:
        return None
    focal = exif.focal
    if focal is None and exif.focal_mm is not None and exif.camera is not None:
        if exif.camera not in of_sensor:
            bitmap = quiet_pycolmap(_PURPOSE).Bitmap.read(path, as_rgb=False)
            of_sensor[exif.camera] = None if bitmap is None else bitmap.exif_focal_length()
        focal = of_sensor[exif.camera]
    longer = max(exif.size)
    if focal is not None and not FOCAL_RANGE[0] * longer <= focal <= FOCAL_RANGE[1] * longer:
        return None  # nonsense in the file
    return focal


def _sharing_keys(
    exif: Mapping[str, Exif | None], sizes: Mapping[str, ImageSize], sharing: Sharing
) -> dict[str, tuple[object, ...]]:
    """Images with equal keys share a camera."""
    if sharing == "single":
        return {name: (sizes[name],) for name in exif}
    if sharing == "image":
        return {name: (name,) for name in exif}
    folders = {name: PurePosixPath(name).parent for name in exif}
    if sharing == "folder":
        return {name: (folders[name], sizes[name]) for name in exif}
    sizes_in: dict[PurePosixPath, set[ImageSize]] = {}
    for name, folder in folders.items():
        sizes_in.setdefault(folder, set()).add(sizes[name])
    keys: dict[str, tuple[object, ...]] = {}
    for name, folder in folders.items():
        header = exif[name]
        camera = None if header is None else header.camera
        alone = camera is None and len(sizes_in[folder]) > 1
        keys[name] = (name,) if alone else (folder, sizes[name], camera)
    return keys


def _make_camera(model: str, params: list[float], size: ImageSize, where: str) -> Any:
    """A camera with given intrinsics, checked."""
    camera = _check_count(model, params, where, size)
    camera.params = params
    camera.has_prior_focal_length = True
    if camera.has_bogus_params(*FOCAL_RANGE, MAX_EXTRA):
        raise LinGlueError(
            f"{where}: parameters {camera.params_info} = {', '.join(f'{p:g}' for p in params)} fit no image of "
            f"{size.width}x{size.height} pixels, expected focal lengths of {FOCAL_RANGE[0]:g} to {FOCAL_RANGE[1]:g} "
            "times the longer side and a principal point inside"
        )
    return camera


def _check_count(model: str, params: list[float], where: str, size: ImageSize = ImageSize(1000, 1000)) -> Any:  # noqa: B008
    """A camera of the model with some focal length: COLMAP aborts on lists of the wrong length."""
    pycolmap = quiet_pycolmap(_PURPOSE)
    _check_model(model, where)
    camera = pycolmap.Camera.create_from_model_name(
        pycolmap.INVALID_CAMERA_ID, model, float(max(size)), size.width, size.height
    )
    if len(params) != len(camera.params):
        raise LinGlueError(
            f"{where}: {model} has {len(params)} parameters, expected {len(camera.params)}: {camera.params_info}"
        )
    return camera


def _check_model(model: str, where: str) -> None:
    names = [name for name in quiet_pycolmap(_PURPOSE).CameraModelId.__members__ if name not in _UNUSABLE]
    if model not in names:
        raise LinGlueError(f"{where}: {model!r} is no camera model of COLMAP, expected {', '.join(names)}")


def _split(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Name of the image, and model, width, height and parameters."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise LinGlueError(f"{where}: {line.strip()!r} cannot be used, expected `name MODEL width height params…`")
    return found["name"], tuple(found["rest"].split())


def _numbers(fields: Any, where: str) -> list[float]:
    try:
        values = [float(part) for part in fields]
    except ValueError as error:
        raise LinGlueError(f"{where}: {' '.join(fields)!r} are no numbers, expected camera parameters") from error
    if not np.isfinite(values).all():
        raise LinGlueError(f"{where}: {' '.join(fields)!r} are not all finite, expected camera parameters")
    return values


def _whole(text: str, where: str, what: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise LinGlueError(f"{where}: {what} is {text!r}, expected a whole number of pixels")
    return int(text)
