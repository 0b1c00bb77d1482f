"""The identity start: its projection and its command."""

from __future__ import annotations

import sys

import cv2
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.matching.sinkhorn import transport_matches
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig, read_info
from linglue.training.identity import identity_network, main, principal_directions
from linglue.training.losses import transport_loss
from linglue.training.sources.ground_truth import UNMATCHABLE


def descriptors(count: int = 200, dim: int = 24) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return 0.5 + torch.randn(count, dim, generator=random) * torch.linspace(2, 0.1, dim)


def test_directions_are_orthonormal_and_the_best():
    x = descriptors()
    basis = principal_directions(x, 8)
    torch.testing.assert_close(basis.T @ basis, torch.eye(8), atol=1e-5, rtol=0)
    values = torch.linalg.svdvals(x.double())
    kept = (x @ basis).square().sum() / x.square().sum()
    assert kept.item() == pytest.approx((values[:8].square().sum() / values.square().sum()).item(), rel=1e-5)


def test_more_directions_than_dimensions_keep_all_inner_products():
    x = descriptors(dim=10)
    basis = principal_directions(x, 16)
    assert basis.shape == (10, 16)
    assert not basis[:, 10:].any()
    torch.testing.assert_close((x @ basis) @ (x @ basis).T, x @ x.T, atol=1e-3, rtol=1e-4)


def test_same_seed_same_network_and_the_global_state_is_left_alone():
    config = LinGlueConfig(input_dim=24, dim=16, linear_blocks=1, pairwise_layers=1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = identity_network(config, descriptors())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    second = identity_network(config, descriptors())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_every_layer_can_learn():
    """Only the last gain of a layer is zero: its gradient is not."""
    network = identity_network(LinGlueConfig(input_dim=24, dim=16, linear_blocks=1, pairwise_layers=0), descriptors())
    entry = {
        "keypoints": torch.rand(1, 50, 2),
        "descriptors": descriptors(50)[None],
        "image_size": torch.tensor([[10.0, 10.0]]),
    }
    weight = torch.randn(1, 50, 16, generator=torch.Generator().manual_seed(1))
    (network.encode(entry, entry).descriptors0 * weight).sum().backward()
    gains = [p for name, p in network.named_parameters() if name.endswith("norm_update.weight")]
    assert len(gains) == 3
    assert all(gain.grad.abs().max() > 0 for gain in gains)


def test_optimal_transport_starts_between_right_and_wrong_matches():
    """Of unit descriptors, half of which both images share: the shared ones match, the others find nobody."""
    network = LinGlue(LinGlueConfig.preset("linear-sinkhorn", input_dim=256))
    network.initialise_identity()
    both = torch.nn.functional.normalize(torch.randn(120, 256, generator=torch.Generator().manual_seed(0)), dim=1)
    size = network.config.input_scale
    pairs, _ = transport_matches(both[:80] * size, both[40:] * size, network.dustbin.detach())
    assert sorted(map(tuple, pairs.tolist())) == [(40 + k, k) for k in range(40)]
    truth0, truth1 = torch.full((80,), UNMATCHABLE), torch.full((80,), UNMATCHABLE)
    truth0[40:], truth1[:40] = torch.arange(40), torch.arange(40, 80)
    losses = [
        transport_loss(both[:80] * size, both[40:] * size, truth0, truth1, dustbin)
        for dustbin in (network.dustbin.detach(), torch.tensor(1.0))
    ]
    assert losses[0] < 0.5 * losses[1]


def test_command_writes_weights(images, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(images[:2]):
        cv2.imwrite(str(folder / f"{number}.jpg"), image)
    output = tmp_path / "identity.safetensors"
    monkeypatch.setattr(sys, "argv", ["identity", str(folder), "-o", str(output), "--preset", "pair"])
    main()
    assert "128 → 64 keeps" in capsys.readouterr().out
    network, info = LinGlue.load(output), read_info(output)
    assert info.kind == "sift"
    assert info.preset == "pair"
    assert "2 images" in info.training
    assert network.config == LinGlueConfig.preset("pair", 128)


def test_command_without_image(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["identity", str(tmp_path), "-o", str(tmp_path / "a.safetensors")])
    with pytest.raises(LinGlueError, match=r"no \.jpg or \.png"):
        main()
    assert list(tmp_path.iterdir()) == []
