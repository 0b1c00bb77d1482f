"""A context network that starts from LightGlue: the directions its numbers really use, and the units that say most.

LightGlue's keypoints carry 256 numbers, of which some directions hold nearly all; heads compare and pass on 64 numbers
each, of which half do; its updates have 512 units, some of which hardly move. What may go is found on real pairs, and
what stays is fitted to stand in for it. Attention to all keypoints becomes attention to few. The result is worse than
LightGlue, and learns to be better (`linglue.training.lightglue.distil`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from linglue.errors import LinGlueError
from linglue.network.context import Context, ContextConfig, most_similar
from linglue.network.entries import centred
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig
from linglue.training.lightglue.layers import HEAD, HEADS, WIDTH, LightGlueLayers, Pair, Record

RIDGE = 1e-3  # of the fit of what stays to what there was, relative to its inputs
ROWS = 20_000  # keypoints that are enough for it


@dataclass(frozen=True, eq=False)
class Start:
    """A network and how it sees what LightGlue sees."""

    network: LinGlue
    inside: Tensor  # (WIDTH, C) LightGlue's keypoints → the network's
    outside: Tensor  # (WIDTH, C') LightGlue's new descriptors → the network's


def principal(rows: Tensor, count: int) -> Tensor:
    """(X, count) the directions that keep most of rows (N, X), not centred."""
    return torch.linalg.eigh(rows.mT @ rows).eigenvectors.flip(1)[:, :count]


@torch.no_grad()
def narrowed(layers: LightGlueLayers, pairs: Sequence[Pair], config: LinGlueConfig) -> Start:
    """The context network of `config` that starts from `layers`.

    Args:
        layers: as many as the network has.
        pairs: real ones, a dozen.
        config: the network's; of LightGlue's heads.
    """
    shape = _check(layers, config)
    layers.net.double()  # fits need all their digits
    network, records = LinGlue(config).double(), layers.record(pairs)
    context: Any = network.context
    streams = [torch.cat(record.after) for record in records]  # (T, WIDTH) each
    descriptors = torch.cat([x for _, both in pairs for x in both]).double()  # (T, D)
    entered = layers.enter(descriptors)  # (T, WIDTH)
    every = torch.cat([stream / stream.norm(dim=1).mean() for stream in (entered, *streams)])
    inside = principal(every, shape.dim)  # (WIDTH, C)
    _copy(context.input, *_fit(descriptors, entered @ inside))
    for number in range(shape.layers):
        block, record = layers.net.transformers[number].self_attn, records[2 * number]
        _narrow_self(context.selves[number], block, record, inside, layers.net.posenc.Wr.weight)
        _narrow_update(context.selves[number].update, block.ffn, block.out_proj, record, inside)
        block, record = layers.net.transformers[number].cross_attn, records[2 * number + 1]
        _narrow_cross(context.crosses[number], block, record, inside)
        _narrow_update(context.crosses[number].update, block.ffn, block.to_out, record, inside)
    outside = principal(layers.output(streams[-1]), config.dim)  # (WIDTH, C')
    _copy(context.output, outside.T @ layers.output.weight @ inside, outside.T @ layers.output.bias)
    layers.net.float()
    return Start(network.float(), inside.float(), outside.float())


def told(context: Context, pair: Pair) -> tuple[list[Tensor], Tensor]:
    """What a pair's keypoints are after each attention, (T, C) each, and their new descriptors (T, C').

    Args:
        context: of the network.
        pair: both images.
    """
    views, descriptors = pair
    count = len(descriptors[0])
    images = [slice(0, count), slice(count, count + len(descriptors[1]))]
    points = [centred(v) for v in views]
    with torch.autocast("cpu", enabled=False):
        candidates = most_similar(descriptors[0], descriptors[1], context.candidates)
    seen = [context.start(torch.cat(list(descriptors)), images, points)]
    output = context(seen[0].clone(), images, points, candidates, [1, 0], seen)
    return seen, output


@torch.no_grad()
def learned(layers: LightGlueLayers, pairs: Sequence[Pair], network: LinGlue) -> Start:
    """A network that has learned before, to go on from; how it sees what LightGlue sees is fitted.

    Args:
        layers: as many as the network has.
        pairs: real ones, a dozen.
        network: of preset context, for the same features.
    """
    _check(layers, network.config)
    theirs = [layers(*pair) for pair in pairs]
    ours = [told(cast(Context, network.context), pair) for pair in pairs]
    streams, wanted = (torch.cat([x for seen, _ in each for x in seen]).double() for each in (theirs, ours))
    outputs, found = (torch.cat([output for _, output in each]).double() for each in (theirs, ours))
    inside, outside = (_solve(x, y) for x, y in ((streams, wanted), (outputs, found)))
    return Start(network, inside.float(), outside.float())


def _check(layers: LightGlueLayers, config: LinGlueConfig) -> ContextConfig:
    """The shape of a network that can learn from these layers."""
    shape = config.context
    if shape is None or shape.layers != layers.count or shape.heads != HEADS or config.input_dim != layers.input_dim:
        raise LinGlueError(
            f"the network is {config}, expected context of {layers.count} layers, input_dim {layers.input_dim}"
        )
    return shape


def _copy(layer: Any, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def _narrow_self(own: Any, block: Any, record: Record, inside: Tensor, frequency: Tensor) -> None:
    """Pairs of numbers that queries and keys use most, with their frequencies; directions that messages use most."""
    size = own.query.out_features // HEADS
    weights = block.Wqkv.weight.unflatten(0, (HEADS, HEAD, 3)).unbind(
        2
    )  # of queries, keys, values (HEADS, HEAD, WIDTH)
    biases = block.Wqkv.bias.unflatten(0, (HEADS, HEAD, 3)).unbind(2)
    used = [torch.cat(rows).square().mean(0).unflatten(1, (-1, 2)).sum(2) for rows in (record.queries, record.keys)]
    scale = (size / HEAD) ** 0.5  # heads divide by the root of their size
    for head in range(HEADS):
        pairs = (used[0][head] * used[1][head]).argsort(descending=True)[: size // 2].sort().values
        rows = torch.stack([2 * pairs, 2 * pairs + 1], dim=1).flatten()  # (size,)
        here = slice(head * size, (head + 1) * size)
        own.query.weight[here] = scale * weights[0][head][rows] @ inside
        own.query.bias[here] = scale * biases[0][head][rows]
        own.key.weight[here] = weights[1][head][rows] @ inside
        own.key.bias[here] = biases[1][head][rows]
        own.frequency[head * size // 2 : (head + 1) * size // 2] = frequency[pairs]
        basis = principal(torch.cat(record.messages)[:, head], size)  # (HEAD, size)
        own.value.weight[here] = basis.T @ weights[2][head] @ inside
        own.value.bias[here] = basis.T @ biases[2][head]


def _narrow_cross(own: Any, block: Any, record: Record, inside: Tensor) -> None:
    """Directions that queries, which are keys, too, and those that messages use most."""
    size = own.both.out_features // HEADS
    scale = (size / HEAD) ** 0.25  # of queries and of keys
    for head in range(HEADS):
        there, here = slice(head * HEAD, (head + 1) * HEAD), slice(head * size, (head + 1) * size)
        basis = scale * principal(torch.cat(record.queries)[:, head], size)  # (HEAD, size)
        own.both.weight[here] = basis.T @ block.to_qk.weight[there] @ inside
        own.both.bias[here] = basis.T @ block.to_qk.bias[there]
        basis = principal(torch.cat(record.messages)[:, head], size)
        own.value.weight[here] = basis.T @ block.to_v.weight[there] @ inside
        own.value.bias[here] = basis.T @ block.to_v.bias[there]


def _narrow_update(own: Any, ffn: Any, merge: Any, record: Record, inside: Tensor) -> None:
    """The units that change keypoints most; the last product is fitted to what all of them did."""
    size = own.message.in_features // HEADS
    hidden = torch.cat(record.hidden)  # (T, 2 · WIDTH)
    told = hidden.std(0) * ffn[3].weight.norm(dim=0)
    kept = told.argsort(descending=True)[: own.own.out_features].sort().values  # (H,)
    first, bias = ffn[0].weight[kept], ffn[0].bias[kept]
    _copy(own.own, first[:, :WIDTH] @ inside, bias + first[:, WIDTH:] @ merge.bias)
    merged = first[:, WIDTH:] @ merge.weight  # (H, WIDTH), heads one behind the other
    bases = [principal(torch.cat(record.messages)[:, head], size) for head in range(HEADS)]
    own.message.weight.copy_(torch.cat([m @ b for m, b in zip(merged.split(HEAD, 1), bases, strict=True)], dim=1))
    _copy(own.norm, ffn[1].weight[kept], ffn[1].bias[kept])
    some = hidden[:: max(1, len(hidden) // ROWS)]
    _copy(own.last, *_fit(some[:, kept], ffn[3](some) @ inside))


def _fit(inputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (Y, X) and bias (Y,) of the product that takes inputs (R, X) to what is wanted (R, Y), nearly."""
    rows = torch.nn.functional.pad(inputs, (0, 1), value=1.0)  # (R, X + 1)
    fitted = _solve(rows, wanted)  # (X + 1, Y)
    return fitted[:-1].T, fitted[-1]


def _solve(rows: Tensor, wanted: Tensor) -> Tensor:
    """(X, Y) takes rows (R, X) to what is wanted (R, Y), nearly, and no direction that rows hardly have is blown up."""
    ridge = RIDGE * len(rows) * rows.square().mean() * torch.eye(rows.shape[1], dtype=rows.dtype)
    return torch.linalg.solve(rows.T @ rows + ridge, rows.T @ wanted)
