"""SIFT: where keypoints lie, what the numbers mean, and which are kept."""

import cv2
import numpy as np
import pytest
from skimage import data

from linglue.features.sift import Sift
from linglue.types import Features


def blob(x: float, y: float, sigma: float = 5.0, size: tuple[int, int] = (160, 128)) -> np.ndarray:
    """(H, W) grey image of a bright Gaussian centred at x, y."""
    xs, ys = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    return (30 + 200 * np.exp(-((xs - x) ** 2 + (ys - y) ** 2) / (2 * sigma**2))).round().astype(np.uint8)


def places(features: Features) -> set[tuple[float, ...]]:
    """x, y and scale of the keypoints; those of several orientations once."""
    assert features.scales is not None
    return set(map(tuple, np.column_stack([features.keypoints, features.scales]).tolist()))


@pytest.mark.parametrize("centre", [(60, 50), (61, 50), (60.5, 49.5)])
def test_a_blob_is_found_at_its_centre(centre):
    found = Sift().extract(blob(*centre)).strongest(1)
    assert np.allclose(found.keypoints[0], centre, atol=0.06)


def test_scale_is_a_diameter_in_original_pixels():
    small, large = (np.ravel(Sift().extract(blob(60, 50, sigma)).strongest(1).scales)[0] for sigma in (3, 6))
    assert large / small == pytest.approx(2, rel=0.1)
    assert small == pytest.approx(2 * 3 / np.sqrt(2) * 1.22, rel=0.25)


def test_orientation_is_radians_from_x_towards_y():
    camera = data.camera()
    upright = Sift().extract(camera, max_keypoints=300)
    turned = Sift().extract(np.ascontiguousarray(np.rot90(camera, -1)), max_keypoints=300)  # x axis → y axis
    height = camera.shape[0]
    expected = np.stack([height - 1 - upright.keypoints[:, 1], upright.keypoints[:, 0]], axis=1)
    gaps = np.linalg.norm(expected[:, None] - turned.keypoints[None], axis=2)
    assert turned.oris is not None and upright.oris is not None
    turn = turned.oris[None] - upright.oris[:, None] - np.pi / 2
    apart = np.abs((turn + np.pi) % (2 * np.pi) - np.pi)
    found = ((gaps < 0.5) & (apart < 0.1)).any(axis=1)
    assert found.mean() > 0.9
    assert upright.oris.min() >= 0 and upright.oris.max() <= 2 * np.pi


def test_descriptors_have_unit_length():
    features = Sift().extract(data.camera(), max_keypoints=200)
    assert features.descriptors.shape == (len(features), 128)
    assert np.allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    assert features.kind == "sift"


def test_the_strongest_are_kept():
    every = Sift().extract(data.camera(), max_keypoints=100_000)
    some = Sift().extract(data.camera(), max_keypoints=100)
    assert len(places(some)) == 100 < len(some)
    assert np.allclose(np.sort(some.scores), np.sort(every.scores)[-len(some) :])


def test_places_are_counted_and_all_their_orientations_kept():
    """As COLMAP counts: a place with two orientations is one of `max_keypoints`."""
    every = Sift().extract(data.camera(), max_keypoints=100_000)
    some = Sift().extract(data.camera(), max_keypoints=150)
    whole = {place: (every.keypoints == np.array(place[:2])).all(axis=1).sum() for place in places(some)}
    kept = {place: (some.keypoints == np.array(place[:2])).all(axis=1).sum() for place in places(some)}
    assert kept == whole and max(kept.values()) > 1


def test_tiles_are_counted_together():
    whole = Sift().extract(data.camera(), max_keypoints=150, tile=256)
    assert len(places(whole)) == 150


def test_mask_comes_before_the_choice_of_the_strongest():
    camera = data.camera()
    mask = np.zeros(camera.shape, np.bool_)
    mask[:, 350:] = True
    inside = Sift().extract(camera, max_keypoints=100_000, mask=mask)
    assert len(inside) > 50
    assert len(places(Sift().extract(camera, max_keypoints=50, mask=mask))) == 50
    pixels = np.rint(inside.keypoints).astype(int)
    assert mask[pixels[:, 1], pixels[:, 0]].all()


def test_masked_features_are_the_unmasked_ones_inside():
    camera = data.camera()
    mask = np.zeros(camera.shape, np.bool_)
    mask[100:300, 100:400] = True
    masked = Sift().extract(camera, max_keypoints=100_000, mask=mask)
    whole = Sift().extract(camera, max_keypoints=100_000)
    pixels = np.rint(whole.keypoints).astype(int)
    assert len(masked) == mask[pixels[:, 1], pixels[:, 0]].sum()


@pytest.mark.parametrize("shape", [(16, 16), (16, 200), (1, 16)])
def test_small_and_flat_images_give_no_keypoints(shape):
    features = Sift().detect(np.full((*shape, 3), 99, np.uint8), 10, None)
    assert len(features) == 0
    assert features.descriptors.shape == (0, 128)
    assert features.scales is not None and features.oris is not None


def test_repeated_calls_agree():
    first, second = (Sift().extract(data.camera(), max_keypoints=500) for _ in range(2))
    assert np.array_equal(first.keypoints, second.keypoints)
    assert np.array_equal(first.descriptors, second.descriptors)


def test_grey_and_colour_of_the_same_picture_agree():
    grey = data.camera()
    colour = cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
    assert np.array_equal(Sift().extract(grey).keypoints, Sift().extract(colour).keypoints)
