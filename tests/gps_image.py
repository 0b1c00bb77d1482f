"""A small image whose EXIF says where it was taken."""

from pathlib import Path

from PIL import ExifTags, Image

Degrees = tuple[float, float, float] | None  # and minutes, and seconds


def gps_image(path: Path, lat: Degrees = None, lon: Degrees = None, lat_ref: str = "N", lon_ref: str = "E") -> Path:
    """Write it, with GPS coordinates in degrees, minutes and seconds if given."""
    exif = Image.Exif()
    gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
    if lat is not None:
        gps[ExifTags.GPS.GPSLatitude], gps[ExifTags.GPS.GPSLatitudeRef] = lat, lat_ref
        gps[ExifTags.GPS.GPSLongitude], gps[ExifTags.GPS.GPSLongitudeRef] = lon, lon_ref
    Image.new("RGB", (32, 24)).save(path, exif=exif)
    return path
