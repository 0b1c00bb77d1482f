"""The whole network: invariances, identity start, bad input, all presets."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linglue.errors import LinGlueError
from linglue.matcher import Matcher
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.neighborhood import Keypoints
from linglue.network import layers
from linglue.network.entries import collate
from linglue.network.linglue import LinGlue
from linglue.network.weights import PRESETS, LinGlueConfig
from linglue.training.identity import identity_network
from linglue.types import Features
from matching.scene import Scene, affine, brute_force, make_scene, sorted_pairs

from . import reference

COUNTS = {
    "raw": 0,
    "pair": 840_960,
    "pair-wo-sep": 840_960,
    "pair-wo-sep-inp": 840_960,
    "linear": 924_288,
    "pair-large": 12_505_344,
    "linear-sinkhorn": 10_530_817,
    "context": 1_400_992,
}
DIM = 32


def features(view: Keypoints, x: torch.Tensor) -> Features:
    size = tuple(int(v) for v in view.size)
    return Features(keypoints=view.points, descriptors=x, image_size=size, scales=view.scales, oris=view.oris)


def pair_of(scene: Scene) -> tuple[Features, Features]:
    return features(scene.view0, scene.x0), features(scene.view1, scene.x1)


def scene_of(inliers: int, outliers: int, seed: int = 0) -> Scene:
    return make_scene(inliers, outliers, affine, dim=DIM, seed=seed)


@functools.cache
def random_network(preset: str, input_dim: int = DIM) -> LinGlue:
    """Every parameter counts, but layers change little, so that true matches stay matches."""
    torch.manual_seed(0)
    network = LinGlue(LinGlueConfig.preset(preset, input_dim)).eval()
    if network.geometry is not None:
        torch.nn.init.normal_(network.geometry.output.weight, std=0.005)
    for name, parameter in network.named_parameters():
        if "norm_update" in name:
            torch.nn.init.normal_(parameter, std=0.005)
    return network


@torch.inference_mode()
def run(network: LinGlue, *pairs: tuple[Features, Features], extra: int = 0):
    """The network on a batch, with `extra` more padding than needed."""
    sides = [collate([f.tensors() for f in side]) for side in zip(*pairs, strict=True)]
    for side in sides:
        for name in ("keypoints", "descriptors", "scales", "oris", "mask"):
            if name in side:
                pad = (0, 0) * (side[name].ndim - 2) + (0, extra)
                side[name] = F.pad(side[name], pad, value=1 if name == "scales" else 0)
    return network({"image0": sides[0], "image1": sides[1]})


@pytest.mark.parametrize("preset", PRESETS)
def test_parameter_counts(preset):
    count = sum(p.numel() for p in LinGlue(LinGlueConfig.preset(preset, 256)).parameters())
    assert count == COUNTS[preset] if preset in COUNTS else COUNTS["pair"] < count < 900_000


@pytest.mark.parametrize("preset", PRESETS)
def test_padding_and_batch_change_nothing(preset):
    network = random_network(preset)
    pairs = [pair_of(scene_of(*counts, seed)) for seed, counts in enumerate([(150, 30), (90, 90), (200, 10)])]
    together = run(network, *pairs)
    padded = run(network, *pairs, extra=13)
    for b, pair in enumerate(pairs):
        n, m = len(pair[0]), len(pair[1])
        alone = {"image0": pair[0].tensors(), "image1": pair[1].tensors()}
        with torch.inference_mode():
            expected = network(alone)
        for other in (together, padded):
            for name, count in (("descriptors0", n), ("descriptors1", m), ("coarse0", n), ("coarse1", m)):
                torch.testing.assert_close(other[name][b, :count], expected[name][0], atol=1e-5, rtol=1e-4)
            assert torch.equal(other["matches0"][b, :n], expected["matches0"][0])
            assert torch.equal(other["matches1"][b, :m], expected["matches1"][0])
            assert (other["matches0"][b, n:] == -1).all()
            torch.testing.assert_close(
                other["matching_scores0"][b, :n], expected["matching_scores0"][0], atol=1e-2, rtol=1e-2
            )
    if preset != "linear-sinkhorn":
        assert (together["matches0"] >= 0).sum() > 300, "there is something to compare"


@pytest.mark.parametrize("preset", PRESETS)
def test_permuted_keypoints_give_permuted_results(preset):
    network, scene = random_network(preset), scene_of(250, 50)
    random = torch.Generator().manual_seed(3)
    order0, order1 = torch.randperm(300, generator=random), torch.randperm(300, generator=random)
    before, after = run(network, pair_of(scene)), run(network, pair_of(scene.permuted(order0, order1)))
    torch.testing.assert_close(after["descriptors0"][0], before["descriptors0"][0, order0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after["descriptors1"][0], before["descriptors1"][0, order1], atol=1e-5, rtol=1e-4)
    found = after["matches"][0]
    back = torch.stack([order0[found[:, 0]], order1[found[:, 1]]], dim=1)
    assert sorted_pairs(back) == sorted_pairs(before["matches"][0])


@pytest.mark.parametrize("preset", PRESETS)
def test_swapped_images_give_swapped_results(preset):
    network = random_network(preset)
    pair = pair_of(scene_of(250, 50))
    here, there = run(network, pair), run(network, pair[::-1])
    for a, b in (("descriptors0", "descriptors1"), ("coarse0", "coarse1"), ("matches0", "matches1")):
        torch.testing.assert_close(here[a], there[b], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(here[b], there[a], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("linear-sinkhorn", "context")])
@torch.inference_mode()
def test_network_equals_its_plain_reference(preset):
    """Fused, blocked and concatenated against one image after the other: the same but for rounding."""
    network, (one, two) = random_network(preset), pair_of(scene_of(250, 50))
    entries = one.tensors(), two.select(np.arange(280)).tensors()
    encoded, plain = network.encode(*entries), reference.encode(network, *entries)
    torch.testing.assert_close(encoded.descriptors0[0], plain[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoded.descriptors1[0], plain[1], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_matches_equal_those_of_the_plain_reference_on_real_features(pair):
    matcher = Matcher.from_pretrained("sift", matching=MatchingConfig(learned=False))
    found = [matcher.extract(image, 600) for image in (pair.image0, pair.image1)]
    entries = [f.tensors() for f in found]
    x0, x1 = reference.encode(matcher.network, *entries)
    view0, view1 = (Keypoints(e["keypoints"][0], e["image_size"][0], e["scales"][0], e["oris"][0]) for e in entries)
    pairs, _ = match_descriptors(view0, view1, x0, x1, matcher.matching)
    assert sorted_pairs(pairs) == sorted(map(tuple, matcher.match(*found).indices.tolist()))
    assert len(pairs) > 200


@torch.inference_mode()
def test_what_an_image_knows_of_itself_is_computed_once():
    network, pair = random_network("geo"), pair_of(scene_of(250, 50))
    entries = pair[0].tensors(), pair[1].tensors()
    known = [{**entry, "encoded": network.encode_image(entry)} for entry in entries]
    assert torch.equal(network.encode(*known).descriptors0, network.encode(*entries).descriptors0)
    spoiled = {**known[0], "encoded": torch.zeros_like(known[0]["encoded"])}
    assert not torch.equal(network.encode(spoiled, known[1]).descriptors0, network.encode(*entries).descriptors0)


def test_output_dictionary_is_consistent():
    result = run(random_network("geo"), pair_of(scene_of(250, 50)), pair_of(scene_of(200, 10)))
    for b in range(2):
        pairs, scores = result["matches"][b], result["scores"][b]
        assert len(pairs) > 100
        for (i, j), score in zip(pairs.tolist(), scores.tolist(), strict=True):
            assert result["matches0"][b, i] == j
            assert result["matches1"][b, j] == i
            assert result["matching_scores0"][b, i] == score == result["matching_scores1"][b, j]
        assert (result["matches0"][b] >= 0).sum() == len(pairs) == (result["matches1"][b] >= 0).sum()
        assert ((scores >= 0) & (scores <= 1)).all()
    torch.testing.assert_close(result["descriptors0"][0, :300].norm(dim=-1), torch.ones(300))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 5), (2, 2)])
def test_few_keypoints_are_finite(preset, counts):
    network = random_network(preset)
    rng = np.random.default_rng(0)
    pair = tuple(
        Features(keypoints=rng.uniform(0, 100, (n, 2)), descriptors=rng.normal(size=(n, DIM)), image_size=(100, 100))
        for n in counts
    )
    with torch.inference_mode():
        result = network({"image0": pair[0].tensors(), "image1": pair[1].tensors()})
    assert result["descriptors0"].shape == (1, counts[0], network.config.dim)
    for name in ("descriptors0", "descriptors1", "coarse0", "matching_scores0", "matching_scores1"):
        assert torch.isfinite(result[name]).all()
    assert result["matches"][0].shape[1] == 2


def test_an_empty_image_in_a_batch_leaves_the_others_alone():
    network, full = random_network("geo"), pair_of(scene_of(250, 20))
    empty = (full[0].select(np.zeros(0, dtype=np.int64)), full[1])
    together, alone = run(network, full, empty), run(network, full)
    assert torch.equal(together["matches0"][0], alone["matches0"][0])
    assert (together["matches0"][1] == -1).all()
    assert torch.isfinite(together["descriptors0"]).all()


def test_forty_thousand_keypoints_are_finite():
    """One linear block and short descriptors: the number of keypoints is what could go wrong, not that of layers."""
    torch.manual_seed(0)
    network = LinGlue(LinGlueConfig(input_dim=16, dim=16, linear_blocks=1, pairwise_layers=1, geometry=True)).eval()
    random = torch.Generator().manual_seed(0)
    sides = [
        {
            "keypoints": torch.rand(1, 40_000, 2, generator=random) * 4000,
            "descriptors": F.normalize(torch.rand(1, 40_000, 16, generator=random), dim=-1),
            "image_size": torch.tensor([[4000.0, 4000.0]]),
        }
        for _ in range(2)
    ]
    with torch.inference_mode():
        encoded = network.encode(*sides)
    for descriptors in (encoded.descriptors0, encoded.descriptors1, encoded.coarse0, encoded.coarse1):
        torch.testing.assert_close(descriptors.norm(dim=-1), torch.ones(1, 40_000))


@pytest.mark.parametrize("preset", PRESETS)
def test_autocast_is_finite_and_close(preset):
    network, pair = random_network(preset), pair_of(scene_of(200, 20))
    entries = pair[0].tensors(), pair[1].tensors()
    with torch.inference_mode():
        exact = network.encode(*entries)
        with torch.autocast("cpu", torch.bfloat16):
            result = network({"image0": entries[0], "image1": entries[1]})
    assert torch.isfinite(result["descriptors0"]).all()
    assert result["descriptors0"].dtype == torch.float32
    near = F.cosine_similarity(result["descriptors0"], exact.descriptors0, dim=-1)
    assert near.median() > 0.999


@pytest.mark.parametrize("preset", ["pair", "pair-wo-sep-inp", "geo", "linear"])
@pytest.mark.parametrize("input_dim", [64, 96, 48])
def test_identity_start_equals_raw_matching(preset, input_dim):
    scene = make_scene(250, 100, affine, dim=input_dim)
    raw = torch.cat([scene.x0, scene.x1])
    network = identity_network(LinGlueConfig.preset(preset, input_dim), raw).eval()
    result = run(network, pair_of(scene))
    x0, x1 = scene.x0, scene.x1
    if input_dim != 64:
        _, _, directions = torch.linalg.svd(raw, full_matrices=False)  # not centred
        x0, x1 = (F.normalize(x @ directions[:64].T, dim=1) for x in (x0, x1))
    found = brute_force(result["descriptors0"][0], result["descriptors1"][0])
    expected = brute_force(x0, x1)
    assert torch.equal(found.index, expected.index)
    torch.testing.assert_close(found.distance, expected.distance, atol=1e-4, rtol=1e-3)
    if input_dim == 64:
        torch.testing.assert_close(result["descriptors0"][0], x0)
    with torch.inference_mode():
        direct, _ = match_descriptors(*scene.views, x0, x1, MatchingConfig())
    assert sorted_pairs(result["matches"][0]) == sorted_pairs(direct)
    assert len(direct) > 200


def test_identity_needs_a_fitting_projection():
    network = LinGlue(LinGlueConfig.preset("pair", 96))
    with pytest.raises(LinGlueError, match=r"None, expected \(96, 64\)"):
        network.initialise_identity()
    with pytest.raises(LinGlueError, match=r"\(64, 64\), expected \(96, 64\)"):
        network.initialise_identity(torch.eye(64))


def test_gradients_reach_every_parameter():
    network = random_network("geo")
    pair = pair_of(scene_of(150, 20))
    encoded = network.encode(pair[0].tensors(), pair[1].tensors())
    weight = torch.randn(encoded.descriptors0.shape, generator=torch.Generator().manual_seed(0))
    ((encoded.descriptors0 * weight).sum() + (encoded.descriptors1 * weight).sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        parameter.grad = None


def test_missing_scales_and_orientations_are_fine():
    scene = scene_of(250, 20).bare()
    result = run(random_network("geo"), pair_of(scene))
    assert len(result["matches"][0]) > 150


def entry(count=5, dim=DIM):
    return {
        "keypoints": torch.rand(1, count, 2),
        "descriptors": torch.rand(1, count, dim),
        "image_size": torch.tensor([[100.0, 100.0]]),
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_descriptors_are_refused(bad):
    broken = entry()
    broken["descriptors"][0, 2, 3] = bad
    with pytest.raises(LinGlueError, match="image1: descriptors contain NaN or infinite") as caught:
        random_network("pair")({"image0": entry(), "image1": broken})
    assert "\n" not in str(caught.value)


@torch.inference_mode()
@pytest.mark.parametrize("preset", ["linear", "geo"])
def test_result_does_not_depend_on_the_number_of_threads(preset, monkeypatch):
    monkeypatch.setattr(layers, "BLOCK", 64)  # more than one block of either image
    entries, found = [image.tensors() for image in pair_of(scene_of(150, 40))], []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(random_network(preset).encode(*entries))
    torch.set_num_threads(1)
    for several in found[1:]:
        assert torch.equal(several.descriptors0, found[0].descriptors0)
        assert torch.equal(several.descriptors1, found[0].descriptors1)


def test_wrong_descriptor_size_is_refused():
    with pytest.raises(LinGlueError, match=r"image0: descriptors have shape \(1, 5, 7\), expected \(B, N, 32\)"):
        random_network("pair")({"image0": entry(dim=7), "image1": entry()})


def test_unknown_preset_lists_the_allowed():
    with pytest.raises(LinGlueError) as caught:
        LinGlueConfig.preset("large")
    assert "'large'" in str(caught.value)
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize(
    "wrong", [{"dim": 60}, {"dim": 0}, {"input_dim": 0}, {"first_layer": False, "linear_blocks": 0}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(LinGlueError):
        LinGlueConfig(**wrong)


@pytest.mark.parametrize("preset", PRESETS)
def test_configuration_survives_json(preset):
    config = LinGlueConfig.preset(preset, 128)
    assert LinGlueConfig.from_json(config.to_json()) == config


def test_configuration_of_the_future_is_refused():
    with pytest.raises(LinGlueError, match="wings"):
        LinGlueConfig.from_json('{"dim": 64, "wings": 2}')
