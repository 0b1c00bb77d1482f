import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from linglue import LinGlueError
from linglue.sfm.cameras import CameraConfig, assign_cameras, read_intrinsics
from linglue.types import ImageSize

pytest.importorskip("pycolmap")

LANDSCAPE = ImageSize(320, 240)
MAKE, MODEL, ORIENTATION, EXIF_PART = 0x010F, 0x0110, 0x0112, 0x8769
FOCAL_LENGTH, FOCAL_35MM = 0x920A, 0xA405


class Folder:
    """Images with their upright sizes."""

    def __init__(self, root):
        self.root, self.paths, self.sizes = root, {}, {}

    def add(self, name, size=LANDSCAPE, model=None, focal_35mm=None, orientation=1):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.full((size.height, size.width, 3), 90, dtype=np.uint8))
        exif = image.getexif()
        exif[ORIENTATION] = orientation
        if model is not None:
            exif[MAKE], exif[MODEL] = "Maker", model
            exif.get_ifd(EXIF_PART)[FOCAL_LENGTH] = float(focal_35mm)
            exif.get_ifd(EXIF_PART)[FOCAL_35MM] = focal_35mm
        image.save(path, exif=exif)
        self.paths[name] = path
        height, width = cv2.imread(str(path)).shape[:2]
        self.sizes[name] = ImageSize(width, height)

    def assign(self, **settings):
        return assign_cameras(self.paths, self.sizes, CameraConfig(**settings))


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def shared(cameras, a, b):
    return cameras.by_name[a] is cameras.by_name[b]


def test_a_focal_length_in_exif_is_a_prior(folder):
    folder.add("ä b.jpg", model="A", focal_35mm=35)
    folder.add("plain.jpg")
    cameras = folder.assign()
    known, guessed = cameras.by_name["ä b.jpg"], cameras.by_name["plain.jpg"]
    # 35 mm equivalent: the diagonal of 36x24 mm is that of the image.
    assert known.focal_length == pytest.approx(35 * np.hypot(*LANDSCAPE) / np.hypot(36, 24), rel=1e-3)
    assert known.has_prior_focal_length and not guessed.has_prior_focal_length
    assert guessed.focal_length == pytest.approx(1.2 * 320)
    assert known.model_name == "SIMPLE_RADIAL"
    assert cameras.given == frozenset() and cameras.problems == []


def test_a_turned_image_has_the_camera_of_its_upright_size(folder):
    folder.add("a.jpg", model="A", focal_35mm=35)
    folder.add("turned.jpg", model="A", focal_35mm=35, orientation=6)
    cameras = folder.assign()
    upright, turned = cameras.by_name["a.jpg"], cameras.by_name["turned.jpg"]
    assert (turned.width, turned.height) == (240, 320)
    assert (turned.principal_point_x, turned.principal_point_y) == (120, 160)
    assert turned.focal_length == pytest.approx(upright.focal_length)
    assert not shared(cameras, "a.jpg", "turned.jpg")


def test_auto_shares_what_exif_and_size_say_is_one_camera(folder):
    for name, model, focal in (
        ("x/1", "A", 35),
        ("x/2", "A", 35),
        ("x/3", "B", 35),
        ("x/4", "A", 50),
        ("y/1", "A", 35),
    ):
        folder.add(f"{name}.jpg", model=model, focal_35mm=focal)
    cameras = folder.assign()
    assert shared(cameras, "x/1.jpg", "x/2.jpg")
    for other in ("x/3.jpg", "x/4.jpg", "y/1.jpg"):
        assert not shared(cameras, "x/1.jpg", other)


def test_auto_shares_without_exif_only_in_folders_of_one_size(folder):
    for name in ("video/1.png", "video/2.png", "web/1.png", "web/2.png"):
        folder.add(name)
    folder.add("web/3.png", ImageSize(300, 200))
    cameras = folder.assign()
    assert shared(cameras, "video/1.png", "video/2.png")
    assert not shared(cameras, "web/1.png", "web/2.png")


@pytest.mark.parametrize(("sharing", "count"), [("single", 2), ("folder", 3), ("image", 4)])
def test_sharing_as_asked_but_never_across_sizes(folder, sharing, count):
    for name in ("x/1.png", "x/2.png", "y/1.png"):
        folder.add(name)
    folder.add("y/tall.png", ImageSize(240, 320))
    cameras = folder.assign(sharing=sharing)
    assert len({id(camera) for camera in cameras.by_name.values()}) == count


def test_given_intrinsics_for_all(folder):
    folder.add("a.jpg", model="A", focal_35mm=35)
    folder.add("b.jpg")
    folder.add("tall one.jpg", ImageSize(240, 320))
    cameras = folder.assign(intrinsics="300, 301,160,120")
    camera = cameras.by_name["a.jpg"]
    assert camera.model_name == "PINHOLE" and camera.params.tolist() == [300, 301, 160, 120]
    assert camera.has_prior_focal_length and shared(cameras, "a.jpg", "b.jpg")
    assert cameras.given == {"a.jpg", "b.jpg"}
    assert cameras.by_name["tall one.jpg"].model_name == "SIMPLE_RADIAL"
    assert len(cameras.problems) == 1 and cameras.problems[0].startswith("tall one.jpg: is 240x320")


def test_given_intrinsics_with_a_model(folder):
    folder.add("a.jpg")
    camera = folder.assign(intrinsics="OPENCV,300,300,160,120,0.1,0,0,0").by_name["a.jpg"]
    assert camera.model_name == "OPENCV" and camera.params[4] == 0.1


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_intrinsics_from_a_list(folder, separator, tmp_path):
    for name in ("sub/a b.jpg", "c.jpg", "d.jpg"):
        folder.add(name)
    lines = [
        "# made by hand",
        "",
        *(f"{name} SIMPLE_PINHOLE 320 240 310 160 120" for name in ("sub/a b.jpg", "other.jpg")),
    ]
    lines = [line.replace(" SIMPLE", "\tSIMPLE") if separator == "\t" else line for line in lines]
    lines.append(separator.join(["c.jpg", "SIMPLE_RADIAL", "320", "240", "310", "160", "120", "-0.05"]))
    text = tmp_path / "list.txt"
    text.write_text("\n".join(lines))
    cameras = folder.assign(intrinsics=str(text))
    assert cameras.given == {"sub/a b.jpg", "c.jpg"}
    assert cameras.by_name["c.jpg"].params.tolist() == [310, 160, 120, -0.05]
    assert cameras.problems == [f"d.jpg: not in {text}, its intrinsics are estimated"]
    listed = read_intrinsics(text)
    assert listed["other.jpg"] is listed["sub/a b.jpg"] is not listed["c.jpg"]


@pytest.mark.parametrize(
    ("intrinsics", "complaint"),
    [
        ("300,300,160", "PINHOLE has 3 parameters, expected 4: fx, fy, cx, cy"),
        ("PINHOL,300,300,160,120", "'PINHOL' is no camera model"),
        ("EQUIRECTANGULAR,300,300", "is no camera model"),
        ("300,300,160,left", "are no numbers"),
        ("300,300,160,nan", "not all finite"),
        ("0.9,0.9,0.5,0.5", "fit no image of 320x240"),
        ("300,300,1600,120", "fit no image of 320x240"),
        ("nowhere.txt", "nowhere.txt: no such file"),
    ],
)
def test_bad_intrinsics_are_one_line(folder, intrinsics, complaint):
    folder.add("a.jpg")
    with pytest.raises(LinGlueError) as error:
        folder.assign(intrinsics=intrinsics)
    assert complaint in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no intrinsics"),
        ("a.jpg", "line 1: 'a.jpg' cannot be used"),
        ("a.jpg PINHOLE 320", "cannot be used"),
        ("a.jpg PINHOLE 0 240 300 300 160 120", "width is '0'"),
        (
            "a.jpg PINHOLE 320 240 300 300 160 120\na.jpg PINHOLE 320 240 300 300 160 120",
            "line 2: 'a.jpg' is given twice",
        ),
        ("a.jpg PINHOLE 640 480 600 600 320 240", "is said to be 640x480 pixels, expected its upright size 320x240"),
    ],
)
def test_bad_lists_are_one_line(folder, tmp_path, text, complaint):
    folder.add("a.jpg")
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(LinGlueError) as error:
        folder.assign(intrinsics=str(path))
    assert str(error.value).startswith(str(path)) and complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_settings():
    with pytest.raises(LinGlueError, match="expected SIMPLE_PINHOLE"):
        CameraConfig(model="FISH")
    with pytest.raises(LinGlueError, match="expected auto, single"):
        CameraConfig(sharing="all")


def test_a_file_that_colmap_cannot_read_has_a_guessed_camera(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no image")
    cameras = assign_cameras({"a.jpg": tmp_path / "a.jpg"}, {"a.jpg": LANDSCAPE}, CameraConfig())
    assert not cameras.by_name["a.jpg"].has_prior_focal_length


def test_no_images():
    assert assign_cameras({}, {}, CameraConfig()).by_name == {}


def test_colmap_knows_the_sensor_where_exif_has_millimetres_only(folder):
    folder.add("a.jpg", model="A", focal_35mm=35)
    path = folder.paths["a.jpg"]
    image = Image.open(path)
    exif = Image.Exif()
    exif[MAKE], exif[MODEL] = "Canon", "Canon PowerShot G9"
    exif.get_ifd(EXIF_PART)[FOCAL_LENGTH] = IFDRational(74, 10)
    image.save(path, exif=exif)
    camera = folder.assign().by_name["a.jpg"]
    assert camera.has_prior_focal_length and camera.focal_length == pytest.approx(7.4 / 7.6 * 320, rel=0.05)
