"""What an image's header says: size, orientation, camera, focal length, GPS. The one reader of EXIF, with Pillow.

Nothing is decoded. EXIF is damaged in many ways, so each entry that cannot be used is simply not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import ExifTags
from PIL import Image as PillowImage

from linglue.io.images import read_image
from linglue.types import ImageSize

LatLon = tuple[float, float]  # degrees, WGS84

UPRIGHT = 1
_FIRST_TRANSPOSED = 5  # orientations from here on swap width and height
_DIAGONAL_35MM = 43.27  # millimetres of the frame that 35 mm equivalents are meant for, as CIPA defines them


@dataclass(frozen=True)
class Exif:
    """The header of an image.

    Example:
        >>> Exif(ImageSize(640, 480), orientation=6).upright_size
        ImageSize(width=480, height=640)
    """

    size: ImageSize  # as stored
    orientation: int = UPRIGHT  # 1 to 8, how the stored image must be rotated or mirrored
    make: str | None = None
    model: str | None = None
    focal_mm: float | None = None
    focal_35mm: float | None = None  # of the same field of view on 35 mm film
    gps: LatLon | None = None

    @property
    def upright_size(self) -> ImageSize:
        """(width, height) of the image as it is decoded, with its orientation applied."""
        width, height = self.size
        return ImageSize(height, width) if self.orientation >= _FIRST_TRANSPOSED else self.size

    @property
    def focal(self) -> float | None:
        """Focal length in pixels, where the header is enough to tell."""
        return None if self.focal_35mm is None else self.focal_35mm / _DIAGONAL_35MM * math.hypot(*self.size)

    @property
    def camera(self) -> tuple[object, ...] | None:
        """Equal for images of one camera at one focal length; None where the header names none."""
        focal = self.focal_35mm or self.focal_mm
        return None if None in (self.make, self.model, focal) else (self.make, self.model, focal, self.size)


def read_exif(path: str | Path) -> Exif | None:
    """The header of an image file; None where Pillow cannot read it.

    Args:
        path: of an image.

    Returns:
        What the header says.

    Example:
        >>> read_exif("a.jpg").orientation
        1
    """
    if not Path(path).is_file():  # opening a pipe would never end
        return None
    try:
        with PillowImage.open(path) as image:
            tags = _tags(image)
            size = _stored_size(image, tags)
            part, gps = tags.get_ifd(ExifTags.IFD.Exif), tags.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # Pillow raises many types on damaged files; the decoder says what is wrong
        return None
    orientation: Any = tags.get(ExifTags.Base.Orientation)
    return Exif(
        size,
        orientation if orientation in range(1, 9) else UPRIGHT,
        _text(tags.get(ExifTags.Base.Make)),
        _text(tags.get(ExifTags.Base.Model)),
        _positive(part.get(ExifTags.Base.FocalLength)),
        _positive(part.get(ExifTags.Base.FocalLengthIn35mmFilm)),
        _gps(gps),
    )


def upright_size(path: str | Path) -> ImageSize:
    """(width, height) of an image as `read_image` returns it, from the header where that is enough."""
    exif = read_exif(path)
    if exif is not None:
        return exif.upright_size
    height, width = read_image(path).shape[:2]
    return ImageSize(width, height)


def on_earth(lat: float, lon: float) -> bool:
    """Whether these are degrees of latitude and longitude; not for NaN, which EXIF's 0/0 becomes.

    Args:
        lat: −90 to 90.
        lon: −180 to 180.
    """
    return abs(lat) <= 90 and abs(lon) <= 180


def _tags(image: PillowImage.Image) -> PillowImage.Exif:
    """The EXIF block alone: Pillow would take the orientation from XMP too, which decoders do not apply."""
    if "exif" not in image.info:
        return image.getexif() if image.format == "TIFF" else PillowImage.Exif()
    tags = PillowImage.Exif()
    tags.load(image.info["exif"])
    return tags


def _stored_size(image: PillowImage.Image, tags: PillowImage.Exif) -> ImageSize:
    """Of TIFF files Pillow gives the upright size, since it rotates them when it decodes; of others the stored one."""
    if image.format == "TIFF":
        return ImageSize(int(tags[ExifTags.Base.ImageWidth]), int(tags[ExifTags.Base.ImageLength]))
    return ImageSize(*image.size)


def _positive(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _text(value: object) -> str | None:
    return (value.strip("\0 ") or None) if isinstance(value, str) else None


def _gps(tags: dict[int, Any]) -> LatLon | None:
    try:
        lat = _degrees(tags[ExifTags.GPS.GPSLatitude], tags.get(ExifTags.GPS.GPSLatitudeRef))
        lon = _degrees(tags[ExifTags.GPS.GPSLongitude], tags.get(ExifTags.GPS.GPSLongitudeRef))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not on_earth(lat, lon) or lat == lon == 0:  # cameras without a fix write zeros
        return None
    return lat, lon


def _degrees(value: Iterable[float], reference: object) -> float:
    """Degrees, minutes and seconds as one number, negative in the south and west."""
    magnitude = sum(float(part) / unit for part, unit in zip(value, (1, 60, 3600), strict=False))
    return -magnitude if str(reference).strip("\0 ").upper() in ("S", "W") else magnitude
