"""Every method on the same features: one result format, no crash on little input, errors that say what is allowed."""

import sys

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.evaluation.methods import METHODS, MethodOptions, make_method
from linglue.types import Features

PLAIN = ("mnn", "ratio", "linglue", "linglue-nofilter")


def make_features(count: int, seed: int = 0, shaped: bool = True) -> Features:
    """SIFT-like features; the same seed gives the same first keypoints, whatever the count."""
    rng = np.random.default_rng(seed)
    values = rng.random((400, 132)).astype(np.float32)[:count]
    return Features(
        keypoints=values[:, :2] * [640, 480],
        descriptors=values[:, 4:] / np.linalg.norm(values[:, 4:], axis=1, keepdims=True),
        image_size=(640, 480),
        scales=1 + 5 * values[:, 2] if shaped else None,
        oris=6 * values[:, 3] if shaped else None,
        kind="sift",
    )


def _needs(name: str) -> None:
    if name == "adalam":
        pytest.importorskip("kornia")


@pytest.mark.parametrize("name", [*PLAIN, "adalam"])
def test_finds_the_identity(name: str) -> None:
    _needs(name)
    features = make_features(300)
    indices, scores = make_method(name, MethodOptions()).match(features, features)
    assert indices.dtype == np.int64 and scores.dtype == np.float32 and len(indices) == len(scores)
    assert len(indices) >= 250
    assert (indices[:, 0] == indices[:, 1]).all()
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("name", [*PLAIN, "adalam"])
@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (1, 1), (5, 0), (2, 3), (300, 1), (8, 8)])
def test_little_input(name: str, counts: tuple[int, int]) -> None:
    _needs(name)
    indices, scores = make_method(name, MethodOptions()).match(make_features(counts[0]), make_features(counts[1], 1))
    assert indices.shape == (len(scores), 2)
    assert (indices < counts).all()


def test_adalam_without_scales_and_orientations() -> None:
    pytest.importorskip("kornia")
    features = make_features(300, shaped=False)
    indices, _ = make_method("adalam", MethodOptions()).match(features, features)
    assert len(indices) >= 250


def test_adalam_reads_orientations() -> None:
    """Points turned by 90° with their orientations are all consistent; with orientations at random far fewer are."""
    pytest.importorskip("kornia")
    features0 = make_features(300)
    x, y = features0.keypoints.T
    turned = np.stack([480 - y, x], axis=1)  # +x → +y, the sense of increasing angles
    adalam = make_method("adalam", MethodOptions())
    rng = np.random.default_rng(3)
    spread = rng.uniform(0, 2 * np.pi, 300).astype(np.float32)
    counts = []
    for oris0, oris1 in ((features0.oris, features0.oris + np.pi / 2), (features0.oris, spread)):
        first, second = (
            Features(keypoints=k, descriptors=features0.descriptors, image_size=s, scales=features0.scales, oris=o)
            for k, s, o in ((features0.keypoints, (640, 480), oris0), (turned, (480, 640), oris1))
        )
        counts.append(len(adalam.match(first, second)[0]))
    assert counts[0] >= 250
    assert counts[1] < 0.7 * counts[0]


def test_ratio_is_a_subset_of_mnn() -> None:
    features0, features1 = make_features(300), make_features(300, seed=1)
    found = {
        name: {tuple(p) for p in make_method(name, MethodOptions()).match(features0, features1)[0].tolist()}
        for name in ("mnn", "ratio")
    }
    assert found["ratio"] < found["mnn"]


def test_unknown_method_lists_the_allowed() -> None:
    with pytest.raises(LinGlueError, match="'best', expected mnn, ratio, adalam, linglue"):
        make_method("best", MethodOptions())
    assert "lightglue" in METHODS


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(LinGlueError, match=r"method adalam needs kornia, .* pip install kornia$"):
        make_method("adalam", MethodOptions())


def test_lightglue_needs_features_it_was_trained_for_and_its_file(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LinGlueError, match="no weights for 'sift' features, expected aliked, disk"):
        make_method("lightglue", MethodOptions("sift"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(LinGlueError, match="aliked_lightglue_v0-1_arxiv-pth: method lightglue needs this weights file"):
        make_method("lightglue", MethodOptions("aliked"))


def test_network_of_another_kind_is_refused() -> None:
    from linglue.network.weights import packaged_weights

    with pytest.raises(LinGlueError, match="made for 'sift' features, expected one for 'disk'"):
        make_method("linglue", MethodOptions("disk", weights=packaged_weights("sift")))
