"""What all front-ends share: the way back to original pixels, masks, tiles, weights files."""

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from skimage import data

from linglue.errors import LinGlueError
from linglue.features.base import Extractor
from linglue.features.sift import Sift
from linglue.features.weights import load_weights
from linglue.types import Features, ImageSize


class BrightSpots(Extractor):
    """Finds pixels of value 255: a front-end whose answer is known."""

    kind = "spots"
    dim = 3
    licence = "none"

    def detect(self, image, max_keypoints, mask):
        self.seen = image.shape
        allowed = image[..., 0] == 255
        if mask is not None:
            assert mask.shape == image.shape[:2] and mask.dtype == np.bool_
            allowed &= mask
        y, x = np.nonzero(allowed)
        return Features(
            keypoints=np.stack([x, y], axis=1),
            descriptors=image[y, x],
            image_size=ImageSize(image.shape[1], image.shape[0]),
            scales=np.ones(len(x)),
            kind=self.kind,
        )


def spots(size: tuple[int, int], points: list[tuple[int, int]], side: int = 1) -> np.ndarray:
    """(H, W) black image with white squares whose top-left pixels are `points`."""
    image = np.zeros(size[::-1], np.uint8)
    for x, y in points:
        image[y : y + side, x : x + side] = 255
    return image


def test_points_come_back_in_original_pixels():
    # A 4x4 square at 40, 20 is one pixel at 10, 5 of the quarter-size image; its centre is 41.5, 21.5.
    features = BrightSpots().extract(spots((256, 128), [(40, 20)], side=4), resize=64)
    assert np.allclose(features.keypoints, [[41.5, 21.5]])
    assert np.allclose(features.scales, 4)
    assert features.image_size == (256, 128)


def test_sift_blob_keeps_its_place_when_resized():
    xs, ys = np.meshgrid(np.arange(400), np.arange(300))
    image = (30 + 200 * np.exp(-((xs - 170) ** 2 + (ys - 120) ** 2) / (2 * 16**2))).astype(np.uint8)
    for resize in (None, 200, 133):
        found = Sift().extract(image, resize=resize).strongest(1)
        assert np.allclose(found.keypoints[0], (170, 120), atol=0.3), resize


def test_resize_never_enlarges():
    extractor = BrightSpots()
    extractor.extract(spots((100, 50), []), resize=1000)
    assert extractor.seen == (50, 100, 3)


def test_extreme_shapes_survive_resizing():
    assert len(Sift().extract(np.zeros((16, 2000), np.uint8), resize=16)) == 0


def test_mask_has_the_original_size_and_holds_after_resizing():
    image = np.full((90, 130), 255, np.uint8)
    mask = np.zeros(image.shape, np.bool_)
    mask[13:61, 27:101] = True
    for resize in (None, 100, 57, 40):
        pixels = np.rint(BrightSpots().extract(image, max_keypoints=100_000, resize=resize, mask=mask).keypoints)
        assert len(pixels) > 100
        assert mask[pixels[:, 1].astype(int), pixels[:, 0].astype(int)].all(), resize


def test_mask_may_be_numbers():
    image = spots((40, 30), [(5, 5), (20, 20)])
    mask = np.zeros(image.shape, np.uint8)
    mask[:10, :10] = 255
    assert np.allclose(BrightSpots().extract(image, mask=mask).keypoints, [[5, 5]])


def test_mask_of_another_size_is_refused():
    with pytest.raises(LinGlueError, match="mask is 30x40 pixels, expected the image's size 40x30"):
        BrightSpots().extract(spots((40, 30), []), mask=np.ones((40, 30), np.bool_))


def test_tiles_find_every_point_once():
    image = np.full((201, 417), 255, np.uint8)
    for tile in (160, 250):
        found = BrightSpots().extract(image, max_keypoints=10**6, tile=tile)
        assert len(found) == image.size
        assert len(np.unique(found.keypoints, axis=0)) == image.size


def test_tiles_are_no_larger_than_asked():
    class Watching(BrightSpots):
        largest = 0

        def detect(self, image, max_keypoints, mask):
            self.largest = max(self.largest, *image.shape[:2])
            return super().detect(image, max_keypoints, mask)

    watching = Watching()
    watching.extract(spots((1000, 700), []), tile=256)
    assert watching.largest <= 256


def test_sift_by_tiles_is_sift_of_the_whole():
    image = data.camera()
    whole = Sift().extract(image, max_keypoints=100_000)
    tiled = Sift().extract(image, max_keypoints=100_000, tile=256)
    gaps = np.linalg.norm(whole.keypoints[:, None] - tiled.keypoints[None], axis=2)
    assert (gaps.min(axis=1) < 0.1).mean() > 0.98
    assert (gaps.min(axis=0) < 0.1).mean() > 0.98


@pytest.mark.parametrize("option", [{"max_keypoints": 0}, {"resize": 8}, {"tile": 100}])
def test_senseless_options_are_refused_by_name(option):
    with pytest.raises(LinGlueError, match=f"{next(iter(option))} is .*expected"):
        BrightSpots().extract(spots((40, 30), []), **option)


def test_exif_rotated_file_gives_the_keypoints_of_the_upright_picture(tmp_path):
    upright = data.astronaut()[100:300, 100:400]
    stored = PillowImage.fromarray(np.ascontiguousarray(np.rot90(upright)))
    exif = stored.getexif()
    exif[274] = 6  # to be shown turned clockwise
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=100, subsampling=0)
    from_file = Sift().extract(tmp_path / "turned.jpg", max_keypoints=200)
    from_array = Sift().extract(np.ascontiguousarray(upright), max_keypoints=200)
    assert from_file.image_size == (300, 200)
    gaps = np.linalg.norm(from_file.keypoints[:, None] - from_array.keypoints[None], axis=2)
    assert (gaps.min(axis=1) < 1).mean() > 0.9


def test_path_array_and_tensor_give_the_same_features(tmp_path):
    image = np.ascontiguousarray(data.astronaut()[:128, :160])
    PillowImage.fromarray(image).save(tmp_path / "a b ü.png")
    tensor = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    results = [
        Sift().extract(source) for source in (tmp_path / "a b ü.png", str(tmp_path / "a b ü.png"), image, tensor)
    ]
    for other in results[1:]:
        assert np.array_equal(other.keypoints, results[0].keypoints)
        assert np.array_equal(other.descriptors, results[0].descriptors)


def test_weights_load_only_if_every_tensor_fits(tmp_path):
    source, net = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    torch.save(source.state_dict(), tmp_path / "good.pth")
    load_weights(net, tmp_path / "good.pth", "good.pth")
    assert torch.equal(net.weight, source.weight)
    wrong = {
        "missing": ({"weight": torch.zeros(2, 3)}, "bias .*missing"),
        "shape": ({"weight": torch.zeros(3, 3), "bias": torch.zeros(2)}, r"weight .*\(3, 3\).*\(2, 3\)"),
        "extra": ({**source.state_dict(), "more": torch.zeros(1)}, "more"),
        "list": ([torch.zeros(1)], "no state dict"),
        "numbers": ({"weight": 1}, "no state dict"),
    }
    for name, (content, says) in wrong.items():
        path = tmp_path / f"{name}.pth"
        torch.save(content, path)
        with pytest.raises(LinGlueError, match=says) as caught:
            load_weights(net, path, "good.pth from somewhere")
        assert str(path) in str(caught.value) and "good.pth from somewhere" in str(caught.value)
