"""Feature sets: what is refused, and with which words; choosing keypoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.types import Features, ImageSize, Matches

N, D = 6, 4


def arrays(**changes):
    rng = np.random.default_rng(0)
    values = {
        "keypoints": rng.uniform(0, 50, (N, 2)),
        "descriptors": rng.normal(size=(N, D)),
        "image_size": (64, 48),
        "scores": np.array([0.1, 0.9, 0.5, 0.9, 0.2, 0.3]),
        "scales": rng.uniform(1, 4, N),
        "oris": rng.uniform(0, 6, N),
        "kind": "sift",
    }
    return {**values, **changes}


def with_nan(shape):
    values = np.ones(shape)
    values.flat[0] = np.nan
    values.flat[-1] = np.inf
    return values


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keypoints": np.zeros((N, 3))}, ["keypoints", "(6, 3)", "(any, 2)"]),
        ({"keypoints": np.zeros(N)}, ["keypoints", "(6,)"]),
        ({"descriptors": np.zeros((N + 1, D))}, ["descriptors", "(7, 4)", "(6, any)"]),
        ({"descriptors": np.zeros(N)}, ["descriptors", "(6,)"]),
        ({"scores": np.zeros(N - 1)}, ["scores", "(5,)", "(6)"]),
        ({"scales": np.ones((N, 1))}, ["scales", "(6, 1)"]),
        ({"oris": np.zeros(1)}, ["oris", "(1,)"]),
        ({"keypoints": with_nan((N, 2))}, ["keypoints", "2 NaN or infinite"]),
        ({"descriptors": with_nan((N, D))}, ["descriptors", "2 NaN or infinite"]),
        ({"oris": with_nan(N)}, ["oris", "2 NaN or infinite"]),
        ({"scales": np.array([1, 2, 0, 1, 1, 1])}, ["scales", "0.0", "positive"]),
        ({"image_size": (0, 48)}, ["image_size", "[0, 48]"]),
        ({"image_size": (64, 48, 3)}, ["image_size", "[64, 48, 3]", "(width, height)"]),
        ({"image_size": 64}, ["image_size", "[64]"]),
    ],
)
def test_bad_input_is_named_in_one_line(changes, words):
    with pytest.raises(LinGlueError) as caught:
        Features(**arrays(**changes))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor, lambda v: np.asarray(v, dtype=np.float64).tolist()])
def test_arrays_tensors_and_lists_are_taken(convert):
    given = arrays()
    features = Features(**{n: v if n in ("kind", "image_size") else convert(v) for n, v in given.items()})
    for name in ("keypoints", "descriptors", "scores", "scales", "oris"):
        value = getattr(features, name)
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, given[name], rtol=1e-6)
    assert len(features) == N
    assert features.dim == D
    assert features.image_size == ImageSize(width=64, height=48)


def test_tensors_that_require_gradients_and_half_precision_are_taken():
    x = torch.rand(N, D, requires_grad=True)
    assert Features(**arrays(descriptors=x)).dim == D
    assert Features(**arrays(descriptors=x.detach().bfloat16())).descriptors.dtype == np.float32


def test_defaults():
    features = Features(keypoints=np.zeros((N, 2)), descriptors=np.zeros((N, D)), image_size=(10, 10))
    assert features.scores.tolist() == [1] * N
    assert features.scales is None
    assert features.oris is None


def test_empty_set_is_valid():
    features = Features(
        keypoints=np.zeros((0, 2)), descriptors=np.zeros((0, D)), image_size=(10, 10), scales=[], oris=[]
    )
    assert len(features) == 0
    assert features.dim == D
    assert len(features.strongest(5)) == 0
    assert features.tensors()["descriptors"].shape == (1, 0, D)


def test_select_by_index_and_mask():
    features = Features(**arrays())
    chosen = features.select(np.array([4, 1]))
    for name in ("keypoints", "descriptors", "scores", "scales", "oris"):
        np.testing.assert_array_equal(getattr(chosen, name), getattr(features, name)[[4, 1]])
    assert chosen.kind == "sift"
    assert chosen.image_size == features.image_size
    np.testing.assert_array_equal(features.select(features.scores > 0.4).scores, features.scores[[1, 2, 3]])
    bare = Features(**arrays(scales=None, oris=None)).select(np.array([0]))
    assert bare.scales is None and bare.oris is None


def test_strongest_comes_best_first_and_ties_keep_their_order():
    features = Features(**arrays())
    np.testing.assert_array_equal(features.strongest(3).keypoints, features.keypoints[[1, 3, 2]])
    assert len(features.strongest(0)) == 0


@pytest.mark.parametrize("count", [None, N, N + 10])
def test_strongest_of_enough_changes_nothing(count):
    features = Features(**arrays())
    np.testing.assert_array_equal(features.strongest(count).keypoints, features.keypoints)


def test_tensors_are_one_entry_of_the_network_input():
    entry = Features(**arrays()).tensors()
    shapes = {name: tuple(value.shape) for name, value in entry.items()}
    assert shapes == {
        "keypoints": (1, N, 2),
        "descriptors": (1, N, D),
        "image_size": (1, 2),
        "scales": (1, N),
        "oris": (1, N),
    }
    assert entry["image_size"].tolist() == [[64, 48]]
    assert {"scales", "oris"}.isdisjoint(Features(**arrays(scales=None, oris=None)).tensors())


def test_matches_have_a_length():
    features = Features(**arrays())
    empty = np.zeros((0, 2), np.float32)
    matches = Matches(empty, empty, empty.astype(np.int64), np.zeros(0, np.float32), features, features)
    assert len(matches) == 0
    assert matches.pair_score == 0
