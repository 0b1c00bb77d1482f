"""LinPoint with a random network: invariances, extreme images, and every step against a plain loop."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage import data
from torch import nn

from linglue.errors import LinGlueError
from linglue.features import linpoint, make_extractor
from linglue.features.linpoint import (
    BORDER,
    DIM,
    RADIUS,
    SHARPNESS,
    LinPoint,
    LinPointNet,
    detect,
    maxima,
    refine,
    sample,
)
from linglue.types import ImageSize


@pytest.fixture(scope="module")
def net() -> LinPointNet:
    """Random, its normalisation fitted to an image, its heat and trust lively enough for thousands of keypoints."""
    torch.manual_seed(1)
    net = LinPointNet()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        net.get_parameter("heat.2.weight").mul_(6)
        net.trust.weight.mul_(6)
        net.get_parameter("offsets.2.weight").normal_(0, 0.1)
        net.train()(torch.from_numpy(data.camera()).float()[None, None] / 255)
    return net.eval()


@pytest.fixture(scope="module")
def file(net, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("linpoint") / "linpoint-features.safetensors"
    linpoint.save_linpoint(path, net, "random")
    return path


@pytest.fixture(scope="module")
def extractor(file) -> LinPoint:
    return LinPoint(file)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.ascontiguousarray(data.astronaut()[20:211, 120:301])  # sides that are no multiples of anything


def as_batch(*images: np.ndarray) -> torch.Tensor:
    return torch.cat([linpoint.to_tensor(image) for image in images])


def test_it_is_small(net, file):
    assert sum(p.numel() for p in net.parameters()) <= 1_000_000
    assert file.stat().st_size <= 2_000_000


def test_features_are_as_promised(extractor, image):
    found = extractor.extract(image, max_keypoints=200)
    assert found.kind == "linpoint" and found.descriptors.shape == (200, DIM)
    assert found.scales is None and found.oris is None
    assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
    assert (np.diff(found.scores) <= 0).all() and found.scores.min() > 0 and found.scores.max() < 1
    assert (found.keypoints >= BORDER - RADIUS).all()
    assert (found.keypoints <= np.array([181, 191]) - 1 - BORDER + RADIUS).all()
    assert (found.keypoints % 1 > 0).mean() > 0.9  # between pixels


def test_the_strongest_are_the_first_of_all(extractor, image):
    few, many = (extractor.extract(image, max_keypoints=n) for n in (20, 100_000))
    assert len(many) > 300
    np.testing.assert_array_equal(few.keypoints, many.keypoints[:20])
    np.testing.assert_allclose(few.descriptors, many.descriptors[:20], atol=1e-6)


def test_mask_comes_before_the_choice_of_the_strongest(extractor, image):
    mask = np.zeros(image.shape[:2], np.bool_)
    mask[40:120, 60:150] = True
    few = extractor.extract(image, max_keypoints=30, mask=mask)
    assert len(few) == 30
    assert (few.keypoints > [60 - RADIUS, 40 - RADIUS]).all() and (few.keypoints < [149 + RADIUS, 119 + RADIUS]).all()
    assert len(extractor.extract(image, mask=np.zeros_like(mask))) == 0


@torch.inference_mode()
def found_in(net, images, sizes, number):
    maps = net(images, sizes)
    keypoints, scores = detect(maps, number, sizes[number], 500)
    return keypoints, scores, net.describe(maps, torch.full((len(keypoints),), number), keypoints)


def assert_same(one, other):
    assert len(one[0]) == len(other[0]) > 100
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)  # sums round differently


def test_an_image_in_a_batch_is_as_alone(net, image):
    other = np.ascontiguousarray(image[::-1, ::-1])
    size = ImageSize(image.shape[1], image.shape[0])
    for number, one in enumerate((image, other)):
        assert_same(found_in(net, as_batch(image, other), [size] * 2, number), found_in(net, as_batch(one), [size], 0))


def test_whatever_pads_an_image_changes_nothing(net, image):
    images = [image, np.ascontiguousarray(image[:97, :130]), np.ascontiguousarray(image[:64, :160])]
    sizes = [ImageSize(image.shape[1], image.shape[0]) for image in images]
    noise = torch.rand(3, 1, 300, 333, generator=torch.Generator().manual_seed(0))
    for number, (image, size) in enumerate(zip(images, sizes, strict=True)):
        noise[number, 0, : size.height, : size.width] = as_batch(image)[0, 0]
    for number, (image, size) in enumerate(zip(images, sizes, strict=True)):
        alone = found_in(net, as_batch(image), [size], 0)
        assert_same(found_in(net, noise, sizes, number), alone)
        assert_same(found_in(net, noise[number : number + 1], [size], 0), alone)


def test_moved_content_is_found_moved(extractor):
    image = data.camera()[:288]
    left, right = (extractor.extract(np.ascontiguousarray(part), 100_000) for part in (image[:, :-32], image[:, 32:]))
    here = left.keypoints[(np.abs(left.keypoints - [256, 144]) < [60, 60]).all(axis=1)]
    gaps = np.abs(here[:, None] - (right.keypoints + np.float32([32, 0]))).max(axis=2).min(axis=1)
    assert len(here) > 50 and (gaps < 0.1).mean() > 0.95


def test_tiles_find_what_the_whole_image_has(extractor):
    image = np.tile(data.camera()[:320], (1, 2))
    whole = extractor.extract(image, max_keypoints=100_000, tile=4096)
    tiled = extractor.extract(image, max_keypoints=100_000, tile=512)
    gaps = np.linalg.norm(whole.keypoints[:, None] - tiled.keypoints[None], axis=2)
    same = gaps.argmin(axis=1)
    close = gaps.min(axis=1) < 0.1
    assert close.mean() > 0.98 and (gaps.min(axis=0) < 0.1).mean() > 0.98
    assert ((whole.descriptors * tiled.descriptors[same]).sum(axis=1)[close] > 0.99).all()


def test_huge_images_are_cut_into_tiles_unasked(extractor, monkeypatch):
    seen = []

    def watch(image, max_keypoints, mask):
        seen.append(image.shape[:2])
        return extractor._empty(ImageSize(image.shape[1], image.shape[0]))

    monkeypatch.setattr(extractor, "detect", watch)
    extractor.extract(np.zeros((4000, 6000, 3), np.uint8))
    assert np.max(seen) <= 2048 and len(seen) >= 6
    seen.clear()
    extractor.extract(np.zeros((4000, 6000, 3), np.uint8), resize=2048)
    assert seen == [(1365, 2048)]


@pytest.mark.parametrize("shape", [(16, 16), (17, 23), (16, 100), (31, 33), (1, 16), (16, 1)])
def test_tiny_and_odd_images_work(extractor, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    found = extractor.detect(image, 50, None)
    assert found.descriptors.shape == (len(found), DIM)
    assert (found.keypoints >= 0).all() and (found.keypoints <= np.array(shape[::-1]) - 1).all()


def test_grey_images_are_their_own_colour(extractor, image):
    grey = np.ascontiguousarray(image[..., 1])
    one, three = (extractor.extract(image, 100) for image in (grey, np.repeat(grey[..., None], 3, axis=2)))
    np.testing.assert_array_equal(one.keypoints, three.keypoints)


@pytest.mark.parametrize("value", [0, 128, 255])
def test_nothing_is_seen_in_one_colour(extractor, value):
    found = extractor.extract(np.full((480, 640, 3), value, np.uint8))
    middle = (np.abs(found.keypoints - [320, 240]) < [100, 20]).all(axis=1)
    assert not middle.any()  # a flat heat has no maximum; only near borders a random network sees something


def test_noise_is_no_trouble(extractor):
    found = extractor.extract(np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8), 1000)
    assert 0 < len(found) <= 1000 and np.isfinite(found.descriptors).all()


def test_folding_the_normalisation_changes_nothing(extractor, file, image):
    with torch.inference_mode():
        plain = linpoint.load_linpoint(file).eval()(as_batch(image))
        folded = extractor.net(as_batch(image))
    for a, b in zip(plain, folded, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_sample_is_bilinear_and_repeats_the_border():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 5, 7, 3, generator=generator)
    points = torch.rand(40, 2, generator=generator) * torch.tensor([70.0, 50.0]) - 8
    image = torch.randint(0, 2, (40,), generator=generator)
    found = sample(maps, image, points, 8)
    for number, (x, y) in enumerate(((points + 0.5) / 8 - 0.5).tolist()):
        x, y = min(max(x, 0), 6), min(max(y, 0), 4)
        expected = torch.zeros(3)
        for column in (math.floor(x), math.floor(x) + 1):
            for row in (math.floor(y), math.floor(y) + 1):
                weight = (1 - abs(x - column)) * (1 - abs(y - row))
                expected += weight * maps[image[number], min(row, 4), min(column, 6)]
        torch.testing.assert_close(found[number], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 1)])
def test_sample_of_a_map_without_neighbours(shape):
    maps = torch.rand(1, *shape, 2)
    found = sample(maps, torch.zeros(1, dtype=torch.int64), torch.tensor([[-100.0, -100.0]]), 8)
    torch.testing.assert_close(found[0], maps[0, 0, 0])


def test_sample_has_gradients_of_maps_and_places():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(1, 4, 5, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    points = (torch.rand(6, 2, dtype=torch.float64, generator=generator) * 14 + 5).requires_grad_()
    image = torch.zeros(6, dtype=torch.int64)
    assert torch.autograd.gradcheck(lambda m, p: sample(m, image, p, 8), (maps, points))


def test_refine_is_the_mean_of_the_square_weighted_by_heat():
    heat = torch.randn(2, 12, 13, generator=torch.Generator().manual_seed(0))
    pixels, image = torch.tensor([[4, 5], [9, 7], [6, 6]]), torch.tensor([0, 1, 1])
    found = refine(heat, image, pixels)
    for number, (x, y) in enumerate(pixels.tolist()):
        total, mean = 0.0, torch.zeros(2)
        for dy in range(-RADIUS, RADIUS + 1):
            for dx in range(-RADIUS, RADIUS + 1):
                weight = math.exp(SHARPNESS * heat[image[number], y + dy, x + dx])
                total += weight
                mean += weight * torch.tensor([x + dx, y + dy])
        torch.testing.assert_close(found[number], mean / total, atol=1e-4, rtol=0)


def test_maxima_are_larger_than_all_around_and_the_first_of_equals():
    heat = torch.randint(0, 30, (40, 50), generator=torch.Generator().manual_seed(0)).float()
    found = maxima(heat)
    assert found.shape == (36, 46)
    for y in range(2, 38):
        for x in range(2, 48):
            square = heat[y - 2 : y + 3, x - 2 : x + 3].flatten()
            first = int(square.argmax()) == 12  # torch's argmax is the first of equals
            assert found[y - 2, x - 2] == (first and bool((square[:12] < square[12]).all())), (x, y)
    assert found.any() and not maxima(torch.zeros(9, 9)).any()


def test_missing_weights_are_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(linpoint, "PACKAGED", tmp_path / "none.safetensors")
    with pytest.raises(LinGlueError, match=r"no weights in this package yet.*train-features") as caught:
        make_extractor("linpoint")
    assert str(tmp_path / "none.safetensors") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no tensors", None])
def test_other_files_are_refused_by_name(content, tmp_path):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LinGlueError, match="linpoint") as caught:
        make_extractor("linpoint", path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_refused(net, tmp_path):
    torch.manual_seed(0)
    small = LinPointNet()
    del small.trust
    linpoint.save_linpoint(tmp_path / "x.safetensors", small, "cut")
    with pytest.raises(LinGlueError, match=r"x\.safetensors: not the weights of a linpoint front-end .*trust"):
        make_extractor("linpoint", tmp_path / "x.safetensors")


@pytest.mark.parametrize("axis", [0, 1])
def test_mirrored_images_have_mirrored_keypoints(axis):
    """What is found lies where it is, not beside it: an offset would move the principal point of every camera."""
    offsets = []
    for image in (data.astronaut(), data.coffee(), data.chelsea()):
        size = image.shape[1 - axis]
        mirrored = np.ascontiguousarray(np.flip(image, 1 - axis))
        here, there = (LinPoint().extract(i, 1000).keypoints for i in (image, mirrored))
        back = there.copy()
        back[:, axis] = size - 1 - there[:, axis]
        distance = np.linalg.norm(here[:, None] - back[None], axis=2)  # (N, M)
        near = distance.argmin(1)
        mutual = (distance.argmin(0)[near] == np.arange(len(here))) & (distance.min(1) < 4)
        offsets.append((here - back[near])[mutual, axis] / 2)
    assert abs(np.median(np.concatenate(offsets))) < 0.25  # pixels; without the correction 1.1
