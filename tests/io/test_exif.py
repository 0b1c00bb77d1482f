"""Headers of images as cameras write them, and as they should not."""

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational

from gps_image import gps_image
from linglue.errors import LinGlueError
from linglue.io.exif import UPRIGHT, Exif, read_exif, upright_size
from linglue.io.images import read_image
from linglue.types import ImageSize


def save(path, tags=None, part=None, size=(60, 40)):
    """A small image with EXIF tags, those of the Exif part apart."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8))
    exif = Image.Exif()
    for tag, value in (tags or {}).items():
        exif[tag] = value
    for tag, value in (part or {}).items():
        exif.get_ifd(ExifTags.IFD.Exif)[tag] = value
    image.save(path, exif=exif)
    return path


def gps_of(path):
    exif = read_exif(path)
    return None if exif is None else exif.gps


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_size_is_that_of_the_decoded_image(tmp_path, suffix, orientation):
    path = save(tmp_path / f"a.{suffix}", {ExifTags.Base.Orientation: orientation})
    height, width = read_image(path).shape[:2]
    exif = read_exif(path)
    assert exif.orientation == orientation and exif.size == (60, 40)
    assert upright_size(path) == exif.upright_size == ImageSize(width, height)


def test_size_of_what_pillow_cannot_read_is_decoded_or_refused(tmp_path, monkeypatch):
    path = save(tmp_path / "a.jpg")
    monkeypatch.setattr("linglue.io.exif.read_exif", lambda path: None)
    assert upright_size(path) == (60, 40)
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(LinGlueError, match=r"text\.jpg: not an image"):
        upright_size(tmp_path / "text.jpg")


def test_focal_length_in_pixels_as_colmap_has_it(tmp_path):
    camera = {ExifTags.Base.Make: "Maker", ExifTags.Base.Model: "A"}
    film = {ExifTags.Base.FocalLength: 9.5, ExifTags.Base.FocalLengthIn35mmFilm: 35}
    path = save(tmp_path / "film.jpg", camera, film)
    exif = read_exif(path)
    assert exif.focal == pytest.approx(35 * np.hypot(60, 40) / np.hypot(36, 24), rel=1e-4)
    pycolmap = pytest.importorskip("pycolmap")
    assert exif.focal == pytest.approx(pycolmap.Bitmap.read(path, as_rgb=False).exif_focal_length(), rel=1e-12)
    assert read_exif(save(tmp_path / "mm.jpg", camera, {ExifTags.Base.FocalLength: 9.5})).focal is None


def test_cameras_are_told_apart_by_make_model_focal_length_and_size(tmp_path):
    base = ({ExifTags.Base.Make: "Maker", ExifTags.Base.Model: "A"}, {ExifTags.Base.FocalLength: 9.5})
    same = read_exif(save(tmp_path / "a.jpg", *base)).camera
    assert same == read_exif(save(tmp_path / "b.jpg", *base)).camera == ("Maker", "A", 9.5, (60, 40))
    assert read_exif(save(tmp_path / "c.jpg", base[0], {ExifTags.Base.FocalLength: 20.0})).camera != same
    assert read_exif(save(tmp_path / "d.jpg", *base, size=(64, 40))).camera != same
    assert read_exif(save(tmp_path / "e.jpg", base[0])).camera is None
    assert read_exif(save(tmp_path / "f.jpg")) == Exif(ImageSize(60, 40))


@pytest.mark.parametrize(
    ("tags", "part"),
    [
        ({ExifTags.Base.Orientation: 99}, {}),
        ({ExifTags.Base.Make: "\0\0"}, {}),
        ({}, {ExifTags.Base.FocalLength: IFDRational(0, 0)}),
        ({}, {ExifTags.Base.FocalLengthIn35mmFilm: 0}),
    ],
)
def test_nonsense_is_as_good_as_nothing(tmp_path, tags, part):
    assert read_exif(save(tmp_path / "a.jpg", tags, part)) == Exif(ImageSize(60, 40), UPRIGHT)


def test_gps_of_a_image(tmp_path):
    path = gps_image(tmp_path / "a b.jpg", (48, 51, 29.6), (2, 17, 40.2))
    assert gps_of(path) == pytest.approx((48.858222, 2.294500), abs=1e-6)


def test_south_and_west_are_negative(tmp_path):
    path = gps_image(tmp_path / "a.jpg", (22, 57, 6.0), (43, 12, 38.0), "S", "W")
    assert gps_of(path) == pytest.approx((-22.951667, -43.210556), abs=1e-6)


def test_decimal_degrees_and_minutes(tmp_path):
    assert gps_of(gps_image(tmp_path / "a.jpg", (48.5, 0, 0), (2, 30.5, 0))) == pytest.approx(
        (48.5, 2.508333), abs=1e-6
    )


def test_images_without_a_usable_position(tmp_path):
    (tmp_path / "text.jpg").write_text("no image")
    assert gps_of(gps_image(tmp_path / "none.jpg")) is None
    assert gps_of(gps_image(tmp_path / "zero.jpg", (0, 0, 0), (0, 0, 0))) is None
    assert gps_of(gps_image(tmp_path / "beyond.jpg", (95, 0, 0), (2, 0, 0))) is None
    assert gps_of(gps_image(tmp_path / "unknown.jpg", (IFDRational(0, 0), 0, 0), (2, 0, 0))) is None
    assert gps_of(tmp_path / "text.jpg") is None
    assert gps_of(tmp_path / "missing.jpg") is None
