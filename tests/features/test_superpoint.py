"""SuperPoint against the implementation in transformers, with random weights and with the official ones."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage import data

from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.features.superpoint import SuperPoint

transformers = pytest.importorskip("transformers")

DATA = Path(os.environ.get("LINGLUE_DATA", Path(__file__).parents[3] / "shared" / "data"))
OFFICIAL = DATA / "weights" / "superpoint_v1.pth"
needs_official = pytest.mark.skipif(not OFFICIAL.is_file(), reason=f"official weights not found at {OFFICIAL}")

PEER_PREFIX = {
    **{f"conv{i + 1}{ab}": f"encoder.conv_blocks.{i}.conv_{ab}" for i in range(4) for ab in "ab"},
    **{f"convP{ab}": f"keypoint_decoder.conv_score_{ab}" for ab in "ab"},
    **{f"convD{ab}": f"descriptor_decoder.conv_descriptor_{ab}" for ab in "ab"},
}


def make_peer() -> torch.nn.Module:
    config = transformers.SuperPointConfig(keypoint_threshold=0.0005, nms_radius=4, border_removal_distance=4)
    return transformers.SuperPointForKeypointDetection(config).eval()


def peer_features(peer: torch.nn.Module, grey: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keypoints (N, 2) in pixels, scores (N,) and descriptors (N, 256) of transformers for a grey uint8 image."""
    height, width = grey.shape
    pixels = torch.from_numpy(grey).float().div(255).expand(1, 3, height, width)
    with torch.no_grad():
        out = peer(pixels)
    keypoints = (out.keypoints[0] * torch.tensor([width, height])).round().numpy()
    # transformers forgets the border at the right and at the bottom of the 8-pixel cells.
    inside = (keypoints < [width // 8 * 8 - 4, height // 8 * 8 - 4]).all(axis=1)
    return keypoints[inside], out.scores[0].numpy()[inside], out.descriptors[0].numpy()[inside]


def assert_same(ours, peer: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    position = {tuple(xy): i for i, xy in enumerate(ours.keypoints.astype(int).tolist())}
    pairs = [(position.get(tuple(xy)), j) for j, xy in enumerate(peer[0].astype(int).tolist())]
    both = np.array([pair for pair in pairs if pair[0] is not None])
    # Rounding may decide between two pixels of nearly the same score, so a handful may differ.
    assert len(both) >= 0.995 * max(len(ours), len(peer[0])) > 50
    assert np.allclose(ours.scores[both[:, 0]], peer[1][both[:, 1]], rtol=1e-3, atol=1e-5)
    assert np.allclose(ours.descriptors[both[:, 0]], peer[2][both[:, 1]], atol=1e-4)


@pytest.fixture(scope="module")
def random_pair(tmp_path_factory) -> tuple[torch.nn.Module, Path]:
    """transformers' SuperPoint with lively random weights, and the same weights under Magic Leap's names."""
    peer = make_peer()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in peer.named_parameters():
            gain = 0.05 if name.endswith("bias") else (3 / value[0].numel()) ** 0.5
            value.copy_(torch.randn(value.shape, generator=generator) * gain)
    theirs = peer.state_dict()
    state = {
        f"{ours}.{kind}": theirs[f"{their}.{kind}"]
        for ours, their in PEER_PREFIX.items()
        for kind in ("weight", "bias")
    }
    path = tmp_path_factory.mktemp("weights") / "own.pth"
    torch.save(state, path)
    return peer, path


@pytest.fixture(scope="module")
def random_superpoint(random_pair) -> SuperPoint:
    return SuperPoint(random_pair[1])


@pytest.mark.parametrize("size", [(200, 264), (157, 203)])
def test_random_weights_give_what_transformers_gives(random_pair, random_superpoint, size):
    grey = data.camera()[100 : 100 + size[0], 100 : 100 + size[1]]
    assert_same(random_superpoint.extract(grey, max_keypoints=100_000), peer_features(random_pair[0], grey))


@needs_official
def test_official_weights_give_what_transformers_gives(caplog):
    state = torch.load(OFFICIAL, weights_only=True)
    peer = make_peer()
    peer.load_state_dict({f"{PEER_PREFIX[name.split('.')[0]]}.{name.split('.')[1]}": v for name, v in state.items()})
    ours = make_extractor("superpoint", OFFICIAL)
    assert not caplog.records
    grey = data.camera()[50:310, 100:420]
    features = ours.extract(grey, max_keypoints=100_000)
    assert_same(features, peer_features(peer, grey))
    # Half the corners of a checkerboard's image, at least, are where the corners are.
    board = np.kron(np.indices((6, 8)).sum(0) % 2, np.ones((24, 24))).astype(np.uint8) * 180 + 30
    corners = np.stack(np.meshgrid(np.arange(1, 8) * 24 - 0.5, np.arange(1, 6) * 24 - 0.5), axis=-1).reshape(-1, 2)
    found = ours.extract(board, max_keypoints=35).keypoints
    gaps = np.linalg.norm(corners[:, None] - found[None], axis=2).min(axis=1)
    assert np.median(gaps) < 1


def test_features_are_as_promised(random_superpoint):
    grey = data.camera()[:123, :211]
    features = random_superpoint.extract(grey, max_keypoints=60)
    assert len(features) == 60
    assert features.kind == "superpoint" and features.dim == 256
    assert features.scales is None and features.oris is None
    assert np.allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    assert (np.diff(features.scores) <= 0).all()
    assert (features.keypoints >= 4).all() and (features.keypoints < [211 - 4, 123 - 4]).all()
    assert "non-commercial" in random_superpoint.licence and "Magic Leap" in random_superpoint.licence


def test_keypoints_keep_their_distance(random_superpoint):
    keypoints = random_superpoint.extract(data.camera()[:160, :160], max_keypoints=100_000).keypoints
    apart = np.abs(keypoints[:, None] - keypoints[None]).max(axis=2)
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > 4


def test_mask_comes_before_the_choice_of_the_strongest(random_superpoint):
    grey = data.camera()[:163, :203]
    mask = np.zeros(grey.shape, np.bool_)
    mask[60:, 100:] = True
    every = random_superpoint.extract(grey, max_keypoints=100_000)
    x, y = every.keypoints.astype(int).T
    inside = every.select(mask[y, x])
    few = random_superpoint.extract(grey, max_keypoints=20, mask=mask)
    assert np.array_equal(few.keypoints, inside.strongest(20).keypoints[:20])
    assert len(random_superpoint.extract(grey, mask=np.zeros_like(mask))) == 0


@pytest.mark.parametrize("shape", [(16, 16), (17, 23), (8, 40), (7, 40), (1, 16)])
def test_tiny_images_work(random_superpoint, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    features = random_superpoint.detect(image, 100, None)
    assert features.descriptors.shape == (len(features), 256)
    assert (features.keypoints < shape[::-1]).all()


def test_tiles_change_nothing_but_the_sampling_error(random_superpoint):
    image = data.camera()[:256, :384]
    whole = random_superpoint.extract(image, max_keypoints=100_000)
    tiled = random_superpoint.extract(image, max_keypoints=100_000, tile=256)
    gaps = np.abs(whole.keypoints[:, None] - tiled.keypoints[None]).max(axis=2)
    assert (gaps.min(axis=1) == 0).mean() > 0.97
    assert (gaps.min(axis=0) == 0).mean() > 0.97


def test_other_weights_than_the_official_are_mentioned(random_pair, caplog):
    SuperPoint(random_pair[1])
    assert "own.pth" in caplog.text and "not the official superpoint_v1.pth" in caplog.text


def test_unusable_weights_are_named_with_where_to_get_the_right_ones(tmp_path, random_pair):
    state = torch.load(random_pair[1], weights_only=True)
    (tmp_path / "text.pth").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({**state, "convPb.bias": torch.zeros(64)}, tmp_path / "shape.pth")
    torch.save({name: v for name, v in state.items() if name != "conv1a.bias"}, tmp_path / "missing.pth")
    for name in ("absent.pth", "text.pth", "list.pth", "shape.pth", "missing.pth"):
        with pytest.raises(LinGlueError, match=r"superpoint_v1\.pth.*github\.com/magicleap.*non-commercial") as caught:
            SuperPoint(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
