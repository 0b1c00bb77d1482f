"""The encoder layer as the formula on the page, and the geometry encoder."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from linglue.network import layers as module
from linglue.network.layers import EncoderLayer, GeometryEncoder


def affine(layer, x):
    return x @ layer.weight.T + layer.bias


def norm(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


@pytest.mark.parametrize("block", [1024, 3])
@pytest.mark.parametrize("input_dim", [None, 20])
@torch.no_grad()
def test_layer_equals_formula(input_dim, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    torch.manual_seed(0)
    layer = EncoderLayer(16, 4, input_dim)
    for parameter in layer.parameters():  # also those that begin as zeros and ones
        torch.nn.init.normal_(parameter, std=0.5)
    x, y = torch.randn(5, input_dim or 16), torch.randn(7, input_dim or 16)
    qx, ky, vy = x, y, y
    if input_dim:
        qx, ky, vy = (
            affine(p, v)
            for p, v in zip((layer.project_query, layer.project_key, layer.project_value), (x, y, y), strict=True)
        )
    q, k, v = affine(layer.query, qx), affine(layer.key, ky), affine(layer.value, vy)
    heads = []
    for h in range(4):
        part = slice(4 * h, 4 * h + 4)
        weight = (F.elu(q[..., part]) + 1) @ (F.elu(k[..., part]) + 1).mT  # (N, M)
        heads.append(weight / weight.sum(-1, keepdim=True) @ v[..., part])
    message = norm(layer.norm_message, affine(layer.merge, torch.cat(heads, -1)))
    hidden = affine(layer.mlp[0], torch.cat([qx, message], -1)).clamp(min=0)
    expected = qx + norm(layer.norm_update, affine(layer.mlp[2], hidden))
    found = layer(torch.cat([x, y]), [slice(0, 5), slice(5, 12)], [1, 0])[:5]  # x reads y
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
    with torch.enable_grad():  # another way through the layer
        torch.testing.assert_close(layer(torch.cat([x, y]), [slice(0, 5), slice(5, 12)], [1, 0])[:5], found)


@pytest.mark.parametrize(("dim", "count"), [(64, 41_664), (256, 658_176)])
def test_parameters_of_a_layer(dim, count):
    assert sum(p.numel() for p in EncoderLayer(dim, 8).parameters()) == count


def geometry_input(size=(640.0, 480.0), grow=1.0):
    random = torch.Generator().manual_seed(0)
    points = torch.rand(1, 30, 2, generator=random) * torch.tensor(size) * grow
    scales = 3 * grow * (1 + torch.rand(1, 30, generator=random))
    oris = 6 * torch.rand(1, 30, generator=random)
    return points, torch.tensor([size]) * grow, scales, oris


def test_geometry_is_zero_at_the_start():
    points, size, scales, oris = geometry_input()
    encoder = GeometryEncoder(64)
    for given in ((scales, oris), (None, oris), (scales, None), (None, None)):
        assert torch.equal(encoder(points, size, *given), torch.zeros(1, 30, 64))
    assert encoder(points, size, scales, oris).sum().requires_grad


def trained_encoder() -> GeometryEncoder:
    torch.manual_seed(0)
    encoder = GeometryEncoder(64)
    torch.nn.init.normal_(encoder.output.weight)
    return encoder


def test_geometry_tells_missing_values_apart():
    encoder = trained_encoder()
    points, size, scales, oris = geometry_input()
    results = [encoder(points, size, *given) for given in ((scales, oris), (None, oris), (scales, None), (None, None))]
    for a in range(4):
        assert torch.isfinite(results[a]).all()
        for b in range(a):
            assert (results[a] - results[b]).abs().max() > 1e-3


def test_geometry_does_not_depend_on_resolution_or_full_turns():
    encoder = trained_encoder()
    points, size, scales, oris = geometry_input()
    expected = encoder(points, size, scales, oris)
    torch.testing.assert_close(encoder(points, size, scales, oris + 2 * torch.pi), expected, atol=1e-4, rtol=1e-3)
    large = encoder((points + 0.5) * 4 - 0.5, size * 4, scales * 4, oris)  # pixel centres
    torch.testing.assert_close(large, expected, atol=1e-4, rtol=1e-3)
