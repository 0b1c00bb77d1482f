"""Reading images: whatever is in the file, out comes upright RGB uint8, or one line that says why not."""

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from skimage import data

from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.geometry.pixels import resize_points
from linglue.io.images import SPARE, as_image, open_image, read_image, read_mask, shrink, to_grey


@pytest.fixture
def image() -> np.ndarray:
    return np.ascontiguousarray(data.astronaut()[:96, :128])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, image, orientation):
    stored_from_upright = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    stored = PillowImage.fromarray(np.ascontiguousarray(stored_from_upright[orientation](image)))
    exif = stored.getexif()
    exif[274] = orientation
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=98, subsampling=0)
    read = read_image(tmp_path / "turned.jpg")
    assert read.shape == image.shape
    assert np.abs(read.astype(int) - image).mean() < 2


def test_channel_order_is_rgb(tmp_path):
    red = np.zeros((20, 20, 3), np.uint8)
    red[..., 0] = 255
    PillowImage.fromarray(red).save(tmp_path / "red.png")
    assert np.array_equal(read_image(tmp_path / "red.png"), red)


def test_grey_file_has_three_equal_channels(tmp_path):
    PillowImage.fromarray(data.camera()[:40, :50]).save(tmp_path / "grey.png")
    read = read_image(str(tmp_path / "grey.png"))
    assert read.shape == (40, 50, 3)
    assert np.array_equal(to_grey(read), data.camera()[:40, :50])


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "deep.png"), ramp)
    assert np.abs(read_image(tmp_path / "deep.png")[..., 0].astype(float) - ramp / 257).max() <= 1


def test_transparency_is_dropped(tmp_path, image):
    rgba = np.dstack([image, np.full(image.shape[:2], 77, np.uint8)])
    PillowImage.fromarray(rgba).save(tmp_path / "see through.png")
    assert np.array_equal(read_image(tmp_path / "see through.png"), image)


@pytest.mark.parametrize("name", ["with space.png", "Übergröße ✓.png", "写真.png", "no_extension"])
def test_any_name_works(tmp_path, image, name):
    PillowImage.fromarray(image).save(tmp_path / name, format="png")
    assert np.array_equal(read_image(tmp_path / name), image)


@pytest.mark.parametrize(
    ("content", "says"), [(b"this is text", "decoded"), (b"", "decoded"), (None, "no such image file")]
)
def test_unusable_files_are_named(tmp_path, content, says):
    path = tmp_path / "holiday.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LinGlueError, match=says) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tiny_images_are_refused_by_size(tmp_path):
    PillowImage.fromarray(np.zeros((1, 1, 3), np.uint8)).save(tmp_path / "dot.png")
    with pytest.raises(LinGlueError, match=r"dot\.png.*1x1"):
        read_image(tmp_path / "dot.png")
    with pytest.raises(LinGlueError, match="1x1"):
        as_image(np.zeros((1, 1, 3), np.uint8))


def test_arrays_and_tensors_mean_the_same_image(image):
    tensor = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    grey = to_grey(image)
    assert np.array_equal(as_image(image), image)
    assert np.array_equal(as_image(tensor), image)
    for flat in (grey, grey[..., None], torch.from_numpy(grey).float() / 255):
        assert np.array_equal(as_image(flat), np.repeat(grey[..., None], 3, axis=2))


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((32, 32, 4), np.uint8),
        np.zeros((32, 32, 3), np.float32),
        np.zeros(32, np.uint8),
        torch.zeros(3, 32, 32, dtype=torch.uint8),
        torch.zeros(1, 3, 32, 32),
    ],
)
def test_other_arrays_are_refused(bad):
    with pytest.raises(LinGlueError, match="expected"):
        as_image(bad)


def test_mask_file_allows_where_not_black(tmp_path):
    drawn = np.zeros((20, 30), np.uint8)
    drawn[5:, 10:] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), drawn)
    assert np.array_equal(read_mask(tmp_path / "mask.png"), drawn > 0)


def test_shrink_never_enlarges(image):
    assert shrink(image, 1000) is image
    assert shrink(image, None) is image
    assert shrink(image, 64).shape == (48, 64, 3)


def test_resizing_keeps_the_corners_of_the_image():
    # A pixel's centre is at an integer, so the image spans -0.5 to width - 0.5 at every size.
    corners = np.array([[-0.5, -0.5], [99.5, 49.5]], np.float32)
    half = resize_points(corners, np.array([0.5, 0.5], np.float32))
    assert np.allclose(half, [[-0.5, -0.5], [49.5, 24.5]])


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_the_bits_in_use_of_16_decide_what_is_white(tmp_path, image, bits):
    image[0, 0] = 255
    cv2.imwrite(str(tmp_path / "deep.png"), image[..., ::-1].astype(np.uint16) << (bits - 8))
    assert np.array_equal(read_image(tmp_path / "deep.png"), image)


@pytest.mark.parametrize("suffix", [".gif", ".avif"])
def test_formats_that_pillow_reads(tmp_path, image, suffix):
    if suffix not in PillowImage.registered_extensions():
        pytest.skip("Pillow without it")
    PillowImage.fromarray(image).save(tmp_path / f"image{suffix}")
    assert np.abs(read_image(tmp_path / f"image{suffix}").astype(int) - image).mean() < 12  # GIF has 256 colours


def test_heic_without_its_reader_names_it(tmp_path):
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(LinGlueError, match="pillow-heif"):
        read_image(tmp_path / "a.heic")


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_transparent_areas_are_masked(tmp_path, suffix):
    image = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8), (0, 0), 2)
    alpha = np.full(image.shape[:2], 255, np.uint8)
    alpha[:, :64] = 0
    PillowImage.fromarray(np.dstack([image, alpha])).save(tmp_path / f"a{suffix}", lossless=True)
    opened = open_image(tmp_path / f"a{suffix}")
    assert opened.image.shape == image.shape and opened.mask is not None and np.array_equal(opened.mask, alpha > 0)
    mask = np.zeros_like(alpha)
    mask[:40] = 255
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    assert np.array_equal(open_image(tmp_path / f"a{suffix}", tmp_path / "mask.png").mask, (alpha > 0) & (mask > 0))
    keypoints = make_extractor("sift").extract(tmp_path / f"a{suffix}", 200).keypoints
    assert len(keypoints) > 0 and keypoints[:, 0].min() > 63


def test_opaque_images_have_no_mask(tmp_path, image):
    PillowImage.fromarray(image).convert("RGBA").save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png").mask is None


@pytest.mark.parametrize("orientation", [1, 6])
def test_large_jpeg_files_are_decoded_smaller_when_that_is_enough(tmp_path, orientation):
    """The same keypoints at the same places of the whole image, whichever way round it is stored."""
    whole = cv2.resize(data.astronaut(), (1024, 768), interpolation=cv2.INTER_CUBIC)
    stored = PillowImage.fromarray(np.ascontiguousarray(np.rot90(whole, 1 if orientation == 6 else 0)))
    exif = stored.getexif()
    exif[274] = orientation
    stored.save(tmp_path / "large.jpg", exif=exif, quality=95)
    opened = open_image(tmp_path / "large.jpg", enough=256)
    assert opened.image.shape == (384, 512, 3) and opened.size == (1024, 768)
    resized = cv2.resize(read_image(tmp_path / "large.jpg"), (512, 384), interpolation=cv2.INTER_AREA)
    assert np.abs(opened.image.astype(int) - resized).mean() < 2
    sift = make_extractor("sift")
    quick = sift.extract(tmp_path / "large.jpg", 200, 256)
    exact = sift.extract(read_image(tmp_path / "large.jpg"), 200, 256)
    assert quick.image_size == exact.image_size == (1024, 768)
    gaps = np.linalg.norm(quick.keypoints[:, None] - exact.keypoints[None], axis=2).min(axis=1)
    assert (gaps < 1).mean() > 0.8 and np.median(gaps) < 0.2


@pytest.mark.parametrize(
    ("size", "enough", "shape"),
    [
        ((1024, 768), None, (768, 1024)),
        ((1024, 768), round(1024 / 2 / SPARE) + 1, (768, 1024)),  # half of it would be too small
        ((1024, 768), round(1024 / 4 / SPARE) - 1, (192, 256)),
        ((1023, 768), 100, (768, 1023)),  # half of it would cut pixels
        ((1024, 768), 20, (96, 128)),
    ],
)
def test_what_is_decoded_is_clearly_larger_than_asked(tmp_path, size, enough, shape):
    for suffix, wanted in ((".jpg", shape), (".png", size[::-1])):
        cv2.imwrite(str(tmp_path / f"a{suffix}"), np.full((*size[::-1], 3), 128, np.uint8))
        opened = open_image(tmp_path / f"a{suffix}", enough=enough)
        assert opened.image.shape[:2] == wanted and opened.size == size


@pytest.mark.parametrize("scale", [255.0, float("nan"), -1.0])
def test_float_images_beyond_one_are_refused(image, scale):
    tensor = torch.from_numpy(image).permute(2, 0, 1) / 255
    with pytest.raises(LinGlueError, match=r"image tensor has values from .* expected 0 to 1"):
        as_image(tensor * scale)
    assert np.array_equal(as_image(tensor), image)
