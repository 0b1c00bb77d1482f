"""Every method on the same features: one result format, no crash on little input, errors that say what is allowed."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.evaluation.methods import parse_method, prepare
from linglue.evaluation.peers import NoWeights
from linglue.matcher import MATCHERS, MatcherConfig
from linglue.sfm.extract import ExtractConfig
from linglue.types import Features

PLAIN = ("mnn", "ratio", "ratio-oneway", "linglue", "linglue-full", "linglue-fast", "linglue-nofilter", "linglue-paper")


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
    found = MatcherConfig(name, "sift").build().match(features, features)
    indices, scores = found.indices, found.scores
    assert indices.dtype == np.int64 and scores.dtype == np.float32 and len(indices) == len(scores)
    assert len(indices) >= 250
    assert (indices[:, 0] == indices[:, 1]).all()
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("name", [*PLAIN, "adalam"])
@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (1, 1), (5, 0), (2, 3), (300, 1), (8, 8)])
def test_little_input(name: str, counts: tuple[int, int]) -> None:
    _needs(name)
    found = MatcherConfig(name, "sift").build().match(make_features(counts[0]), make_features(counts[1], 1))
    indices, scores = found.indices, found.scores
    assert indices.shape == (len(scores), 2)
    assert (indices < counts).all()


def test_adalam_without_scales_and_orientations() -> None:
    pytest.importorskip("kornia")
    features = make_features(300, shaped=False)
    assert len(MatcherConfig("adalam").build().match(features, features)) >= 250


def test_adalam_reads_orientations() -> None:
    """Points rotated by 90° with their orientations are all consistent; with orientations at random far fewer are."""
    pytest.importorskip("kornia")
    features0 = make_features(300)
    x, y = features0.keypoints.T
    rotated = np.stack([480 - y, x], axis=1)  # +x → +y, the sense of increasing angles
    adalam = MatcherConfig("adalam").build()
    rng = np.random.default_rng(3)
    spread = rng.uniform(0, 2 * np.pi, 300).astype(np.float32)
    counts = []
    assert features0.oris is not None
    for oris0, oris1 in ((features0.oris, (features0.oris + np.pi / 2) % (2 * np.pi)), (features0.oris, spread)):
        first, second = (
            Features(keypoints=k, descriptors=features0.descriptors, image_size=s, scales=features0.scales, oris=o)
            for k, s, o in ((features0.keypoints, (640, 480), oris0), (rotated, (480, 640), oris1))
        )
        counts.append(len(adalam.match(first, second)))
    assert counts[0] >= 250
    assert counts[1] < 0.7 * counts[0]


def test_ratio_is_a_subset_of_mnn() -> None:
    features0, features1 = make_features(300), make_features(300, seed=1)
    found = {
        name: {tuple(p) for p in MatcherConfig(name, "sift").build().match(features0, features1).indices.tolist()}
        for name in ("mnn", "ratio")
    }
    assert found["ratio"] < found["mnn"]


def test_unknown_method_lists_the_allowed() -> None:
    with pytest.raises(
        LinGlueError,
        match="'best', expected linglue, linglue-full, linglue-fast, linglue-nofilter, linglue-paper, mnn, ratio",
    ):
        MatcherConfig("best").build()
    assert "lightglue" in MATCHERS.names()


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(LinGlueError, match=r"matcher adalam needs kornia, .* pip install linglue\[kornia\]$"):
        MatcherConfig("adalam").build()


def test_lightglue_needs_features_it_was_trained_for_and_its_file(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LinGlueError, match="no weights for 'sift' features, expected aliked, disk, xfeat"):
        MatcherConfig("lightglue", "sift").build()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    with pytest.raises(NoWeights, match="matcher lightglue has no weights: aliked_lightglue_v0-1_arxiv-pth is not in"):
        MatcherConfig("lightglue", "aliked").build()
    with pytest.raises(NoWeights, match=r"superglue_outdoor\.pth is not in"):
        MatcherConfig("superglue", "superpoint").build()


def test_a_peer_without_weights_is_reported_and_the_others_run(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    superglue = MatcherConfig("superglue", "superpoint")
    prepared = prepare({"mnn": MatcherConfig("mnn"), "superglue": superglue}, ExtractConfig())
    assert list(prepared.ready) == ["mnn"] and list(prepared.missing) == ["superglue"]
    with pytest.raises(LinGlueError, match="no method to measure, expected some of linglue"):
        prepare({"superglue": superglue}, ExtractConfig())


def test_a_method_names_its_front_end_matcher_and_weights() -> None:
    common = ExtractConfig("sift", max_keypoints=77, resize=500)
    plain, own = parse_method("mnn", common), parse_method("linpoint:linglue@my/net.safetensors", common)
    assert plain.extract == common and (plain.matcher.name, plain.matcher.features) == ("mnn", "sift")
    assert (own.extract.features, own.extract.max_keypoints, own.extract.resize) == ("linpoint", 77, 500)
    assert (own.matcher.name, own.matcher.features, own.matcher.weights) == (
        "linglue",
        "linpoint",
        Path("my/net.safetensors"),
    )
    assert parse_method("my_package:Matcher", common).matcher.name == "my_package:Matcher"


def test_methods_with_the_same_features_are_measured_together(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    prepared = prepare(["mnn", "linpoint:mnn", "sift:ratio", "xfeat:lightglue"], ExtractConfig("sift"))
    groups = [(extract.features, list(matchers)) for extract, matchers in prepared.by_front_end()]
    assert groups == [("sift", ["mnn", "sift:ratio"]), ("linpoint", ["linpoint:mnn"])]
    assert list(prepared.missing) == ["xfeat:lightglue"]
    with pytest.raises(LinGlueError, match=r"front-end|weights"):
        prepare(["mnn"], ExtractConfig("aliked", Path("none.pth")))


def test_colmaps_matcher_finds_the_identity_and_survives_little_input() -> None:
    pytest.importorskip("pycolmap")
    colmap, features = MatcherConfig("colmap-sift", "sift").build(), make_features(300)
    found = colmap.match(features, features)
    assert len(found) >= 250 and (found.indices[:, 0] == found.indices[:, 1]).all()
    assert len(colmap.match(features, make_features(0))) == 0
    with pytest.raises(LinGlueError, match="cannot match 'aliked' features, expected sift"):
        MatcherConfig("colmap-sift", "aliked").build()


def test_superglue_in_the_layout_of_transformers() -> None:
    """Heads are interleaved in the original: channel d * 4 + h of 8 belongs to entry d of head h."""
    from linglue.evaluation.peers.superglue import convert_state

    weight = torch.arange(8.0)[:, None, None].repeat(1, 8, 1)
    state = {"gnn.layers.0.attn.proj.0.weight": weight, "gnn.layers.0.attn.merge.weight": weight.transpose(0, 1)}
    state |= {"kenc.encoder.4.running_mean": torch.zeros(64), "kenc.encoder.12.weight": torch.zeros(256, 256, 1)}
    converted = convert_state(state)
    order = [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]
    assert converted["gnn.layers.0.attention.self.query.weight"][:, 0].tolist() == order
    assert converted["gnn.layers.0.attention.output.dense.weight"][0].tolist() == order
    assert converted["keypoint_encoder.encoder.1.batch_norm.running_mean"].shape == (64,)
    assert converted["keypoint_encoder.encoder.4.weight"].shape == (256, 256)


def test_network_of_another_kind_is_refused() -> None:
    from linglue.network.weights import packaged_weights

    with pytest.raises(LinGlueError, match="made for 'sift' features, expected one for 'disk'"):
        MatcherConfig("linglue", "disk", weights=packaged_weights("sift")).build()


def test_a_method_may_have_its_own_number_of_keypoints() -> None:
    common = ExtractConfig("sift", max_keypoints=2048)
    assert parse_method("sift:mnn/512", common).extract.max_keypoints == 512
    assert parse_method("mnn/9999", common).extract == common  # never more than the others
    with pytest.raises(LinGlueError, match="method is mnn/many, expected a number of keypoints"):
        parse_method("mnn/many", common)


def test_one_way_ratio_keeps_what_is_not_mutual() -> None:
    features0, features1 = make_features(300), make_features(200, 1)
    both, one_way = (MatcherConfig(n, "sift").build().match(features0, features1) for n in ("ratio", "ratio-oneway"))
    assert {tuple(p) for p in both.indices.tolist()} <= {tuple(p) for p in one_way.indices.tolist()}
    assert both.scores.tolist() == sorted(both.scores.tolist(), reverse=True)
