"""LinGlue straight from its definition: every layer a few lines, padded batches, one image after the other.

The network in `linglue.network.linglue` computes the same with fused products on concatenated, unpadded images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints, Selection, select
from linglue.network.layers import EncoderLayer
from linglue.network.linglue import LinGlue

EPSILON = 1e-6
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def positive(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query (N, H, d), key and value (M, H, d) → (N, H, d)."""
    query, key = positive(query), positive(key)
    message = torch.einsum("nhd,hde->nhe", query, torch.einsum("mhd,mhe->hde", key, value))
    return message / (torch.einsum("nhd,hd->nh", query, key.sum(0))[..., None] + EPSILON)


def pairwise_attention(query: Tensor, key: Tensor, value: Tensor, selection: Selection) -> Tensor:
    """Linear attention inside each neighborhood, summed over seeds."""
    message = torch.zeros_like(query)
    for p in selection.seeds.tolist():
        near = (selection.points0 - selection.points0[p]).square().sum(1) <= selection.reach0**2
        near &= (selection.matched - selection.matched[p]).square().sum(1) <= selection.reach1**2
        target = selection.index[near].unique()
        message[near] += linear_attention(query[near], key[target], value[target])
    return message


def encoder_layer(layer: EncoderLayer, x: Tensor, y: Tensor, attend: Attention, heads: int = 8) -> Tensor:
    """x ← x + LayerNorm(MLP([x, LayerNorm(merge(attention(x, y)))])) for x (N, D), y (M, D)."""
    projected = layer.project_query(x)
    query = layer.query(projected).unflatten(-1, (heads, -1))
    key = layer.key(layer.project_key(y)).unflatten(-1, (heads, -1))
    value = layer.value(layer.project_value(y)).unflatten(-1, (heads, -1))
    message = layer.norm_message(layer.merge(attend(query, key, value).flatten(-2)))
    return projected + layer.norm_update(layer.mlp(torch.cat([projected, message], dim=-1)))


def encode(network: LinGlue, entry0: dict[str, Tensor], entry1: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """x̂ of one pair without padding: (N, C), (M, C)."""
    config, entries = network.config, (entry0, entry1)
    x = [entry["descriptors"][0] for entry in entries]
    if network.first is not None:
        x = [encoder_layer(network.first, one, one, linear_attention) for one in x]
    if network.geometry is not None:
        x = [
            one + network.geometry(e["keypoints"], e["image_size"], e.get("scales"), e.get("oris"))[0]
            for one, e in zip(x, entries, strict=True)
        ]
    for number, layer in enumerate(_layers(network.linear)):
        y = x if number % 2 == 0 else x[::-1]
        x = [encoder_layer(layer, one, other, linear_attention) for one, other in zip(x, y, strict=True)]
    coarse = [F.normalize(one, dim=-1) for one in x]
    if config.select_from_input:
        coarse = [entry["descriptors"][0] for entry in entries]
    views = [Keypoints(entry["keypoints"][0], entry["image_size"][0]) for entry in entries]
    nearest = nearest_both_ways(*coarse)
    chosen = [
        select(views[i], views[1 - i], nearest[i], nearest[1 - i], config.expansion, config.separation) for i in (0, 1)
    ]
    for layer in _layers(network.pairwise):
        attend = [partial(pairwise_attention, selection=selection) for selection in chosen]
        x = [encoder_layer(layer, x[i], x[1 - i], attend[i]) for i in (0, 1)]
    x = x if config.sinkhorn else [F.normalize(one, dim=-1) for one in x]
    return x[0], x[1]


def _layers(modules: nn.ModuleList) -> list[EncoderLayer]:
    return [cast(EncoderLayer, module) for module in modules]
