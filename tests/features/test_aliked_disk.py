"""ALIKED and DISK: with random weights always, with the published ones where kornia's cache has them."""

import builtins
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from skimage import data

from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS, make_extractor
from linglue.features.aliked import Aliked
from linglue.features.base import Extractor
from linglue.features.disk import Disk

kornia_feature = pytest.importorskip("kornia.feature")

CLASSES = {"aliked": Aliked, "disk": Disk}
FILES = {"aliked": "aliked-n16.pth", "disk": "depth-save.pth"}
CACHE = Path(os.environ.get("LINGLUE_KORNIA_CACHE", Path(torch.hub.get_dir()) / "checkpoints"))


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(5)
    for name, net in (("aliked", kornia_feature.ALIKED("aliked-n16")), ("disk", kornia_feature.DISK())):
        state = net.state_dict()
        if name == "aliked":
            del state["dkd.hw_grid"]  # as in the published file
            state["score_head.6.weight"] *= 30  # lively scores
        torch.save({"extractor": state} if name == "disk" else state, folder / FILES[name])
    return {name: folder / FILES[name] for name in FILES}


@pytest.fixture(scope="module", params=["aliked-random", "disk-random", "aliked-published", "disk-published"])
def extractor(request, random_weights) -> Extractor:
    name, which = request.param.split("-")
    if which == "random":
        return make_extractor(name, random_weights[name])
    if not (CACHE / FILES[name]).is_file():
        pytest.skip(f"published weights not found at {CACHE / FILES[name]}")
    return make_extractor(name, CACHE / FILES[name])


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.ascontiguousarray(data.astronaut()[20:180, 120:312])


def test_features_are_as_promised(extractor, image):
    features = extractor.extract(image, max_keypoints=40)
    assert features.kind == extractor.kind and features.dim == 128 == FRONT_ENDS[extractor.kind].dim
    assert 0 < len(features) <= 40
    assert features.scales is None and features.oris is None
    assert np.allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-4)
    assert (np.diff(features.scores) <= 0).all()
    assert (features.keypoints >= 0).all() and (features.keypoints <= [191, 159]).all()


def test_agrees_with_kornia_itself(extractor, image):
    images = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        if extractor.kind == "aliked":
            found = extractor.net(images)[0]
            scores = found.keypoint_scores
        else:
            found = extractor.net(images, pad_if_not_divisible=True)[0]
            scores = found.detection_scores
    features = extractor.extract(image, max_keypoints=100_000)
    assert len(features) == found.n
    order = scores.argsort(descending=True)[:20]
    gaps = np.abs(features.keypoints[:, None] - found.keypoints[order].numpy()[None]).max(axis=2)
    same = gaps.argmin(axis=0)
    assert (gaps.min(axis=0) < 1e-2).all()
    assert np.allclose(features.descriptors[same], found.descriptors[order].numpy(), atol=1e-2)


def test_centres_of_pixels_are_at_integers(extractor, image):
    # A keypoint's score is the score map read at its place, pixel (0, 0) being the first entry of the map.
    images = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        if extractor.kind == "aliked":
            score_map = extractor.net.extract_dense_map(images)[1][0, 0].numpy()
        else:
            score_map = extractor.net.heatmap_and_dense_descriptors(images)[0][0, 0].numpy()
    assert score_map.shape == image.shape[:2]
    features = extractor.extract(image, max_keypoints=50)
    x, y = features.keypoints.astype(np.float64).T
    read = map_coordinates(score_map, [y, x], order=1)
    assert np.allclose(read, features.scores, rtol=1e-2, atol=1e-2)


def test_moved_content_is_found_moved(extractor):
    wide = data.astronaut()[:288, :416]
    left = extractor.extract(np.ascontiguousarray(wide[:, :-32]), max_keypoints=100_000).keypoints
    right = extractor.extract(np.ascontiguousarray(wide[:, 32:]), max_keypoints=100_000).keypoints + np.float32([32, 0])
    # Only where both crops see the same surroundings: near a border the networks see the padding.
    left = left[((left > [96, 64]) & (left < [320, 224])).all(axis=1)]
    gaps = np.abs(left[:, None] - right[None]).max(axis=2)
    close = gaps.min(axis=1) < 0.5
    assert close.mean() > 0.3
    assert np.abs(np.median((left - right[gaps.argmin(axis=1)])[close], axis=0)).max() < 0.02


def test_mask_comes_before_the_choice_of_the_strongest(extractor, image):
    mask = np.zeros(image.shape[:2], np.bool_)
    mask[40:120, 60:150] = True
    every = extractor.extract(image, max_keypoints=100_000)
    x, y = np.rint(every.keypoints).astype(int).T
    inside = every.select(mask[y, x])
    assert len(inside) > 5
    few = extractor.extract(image, max_keypoints=5, mask=mask)
    assert np.array_equal(few.keypoints, inside.keypoints[:5])
    assert np.allclose(few.descriptors, inside.descriptors[:5], atol=1e-4)
    assert len(extractor.extract(image, mask=np.zeros_like(mask))) == 0


def test_same_image_same_features_whatever_came_between(extractor, image):
    first = extractor.extract(image, max_keypoints=100)
    extractor.extract(image[:64, :64], max_keypoints=7)
    second = extractor.extract(image, max_keypoints=100)
    assert np.array_equal(first.keypoints, second.keypoints)
    assert np.array_equal(first.descriptors, second.descriptors)


@pytest.mark.parametrize("shape", [(16, 16), (17, 23), (16, 100), (1, 16), (16, 1)])
def test_tiny_and_odd_images_work(extractor, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    features = extractor.detect(image, 50, None)
    assert features.descriptors.shape == (len(features), 128)
    assert (features.keypoints >= 0).all() and (features.keypoints <= np.array(shape[::-1]) - 1).all()


@pytest.mark.parametrize("name", CLASSES)
def test_without_weights_it_says_where_they_belong_and_loads_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(LinGlueError) as caught:
        CLASSES[name]()
    assert str(tmp_path / "checkpoints" / FILES[name]) in str(caught.value)
    assert "https://" in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", CLASSES)
def test_kornias_cache_is_found(name, tmp_path, monkeypatch, random_weights):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / FILES[name]).write_bytes(random_weights[name].read_bytes())
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert make_extractor(name).kind == name


@pytest.mark.parametrize("name", CLASSES)
def test_the_other_networks_weights_are_refused(name, random_weights):
    other = random_weights["disk" if name == "aliked" else "aliked"]
    with pytest.raises(LinGlueError, match="expected") as caught:
        CLASSES[name](other)
    assert str(other) in str(caught.value) and FILES[name] in str(caught.value)


@pytest.mark.parametrize("name", CLASSES)
def test_without_kornia_it_says_how_to_install(name, random_weights, monkeypatch):
    original = builtins.__import__

    def no_kornia(module, *args, **kwargs):
        if module.split(".")[0] == "kornia":
            raise ImportError(module)
        return original(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_kornia)
    with pytest.raises(LinGlueError, match=r"pip install linglue\[kornia\]"):
        CLASSES[name](random_weights[name])
    assert "kornia" in sys.modules  # only hidden, for the tests that follow
