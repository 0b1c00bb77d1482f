"""LinGlue: two sets of keypoint descriptors in, descriptors in which nearest neighbours are matches out.

descriptors → first layer → L1 × (self, cross) linear attention → f̂ → L2 × pairwise neighborhood attention → x̂

Attention is linear in the number of keypoints, over all of them and within matching neighborhoods:

    V'_i = φ(Q_i)ᵀ (Σ_j φ(K_j) V_jᵀ) / φ(Q_i)ᵀ (Σ_j φ(K_j)),    φ(u) = elu(u) + 1

The two sums over j do not depend on i: they are computed once, whatever the number of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from linglue.errors import LinGlueError
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Neighborhoods, Selection, View, pad_groups, select, split_by_size
from linglue.network.config import LinGlueConfig
from linglue.types import Features

EPSILON = 1e-6  # denominator of a query that attends to nothing
PADDED_TOKENS = 1 << 16  # gathered at a time in pairwise attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value (B, N, H, d) → message (B, N, H, d)
Entry = Mapping[str, Tensor]  # one image of the input dictionary


class _Positive(torch.autograd.Function):
    """exp(min(x, 0)) + max(x, 0), whose derivative is its own value cut off at 1: nothing else need be remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0] * y.clamp(max=1)


def positive(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, the feature map that replaces softmax attention's exponential; faster than torch's elu."""
    return cast(Tensor, _Positive.apply(x))


def linear_attention(query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """query (B, N, H, d), key and value (B, M, H, d), key_mask (B, M) bool → (B, N, H, d).

    Sums over tens of thousands of keys leave float16's range, so the products run in float32 under autocast, too.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = positive(query.float()), positive(key.float()), value.float()
        if key_mask is not None:
            key = key * key_mask[:, :, None, None]  # a masked key has no weight
        memory = torch.einsum("bmhd,bmhe->bhde", key, value)  # (B, H, d, d)
        total = key.sum(1)  # (B, H, d)
        message = torch.einsum("bnhd,bhde->bnhe", query, memory)  # (B, N, H, d)
        weight = torch.einsum("bnhd,bhd->bnh", query, total)  # (B, N, H)
        return message / (weight[..., None] + EPSILON)


@dataclass(frozen=True)
class PaddedGroups:
    """Some neighborhoods as index tables: what attends (source) to what (target), per seed."""

    source: Tensor  # (S, n) keypoints of the image that is updated
    source_mask: Tensor  # (S, n)
    target: Tensor  # (S, m) keypoints of the other image, each once
    target_mask: Tensor  # (S, m)


def pad_neighborhoods(block: Neighborhoods, targets: int) -> Iterator[PaddedGroups]:
    """Index tables of a block of neighborhoods, cut so that none exceeds PADDED_TOKENS; `targets`: keypoints there."""
    count = torch.bincount(block.seed, minlength=len(block.seeds))  # (S,)
    pair = torch.unique(block.seed * targets + block.target)  # an index set: shared targets count once
    pair_seed, pair_target = pair // targets, pair % targets
    for start, stop in split_by_size(count, PADDED_TOKENS):
        source = (block.seed >= start) & (block.seed < stop)
        target = (pair_seed >= start) & (pair_seed < stop)
        yield PaddedGroups(
            *pad_groups(block.seed[source] - start, block.source[source], stop - start),
            *pad_groups(pair_seed[target] - start, pair_target[target], stop - start),
        )


def pairwise_attention(query: Tensor, key: Tensor, value: Tensor, selection: Selection) -> Tensor:
    """Linear attention inside each neighborhood, summed over seeds: query (N, H, d), key, value (M, H, d) → (N, H, d).

    Keypoints that no neighborhood contains receive zero.
    """
    message = query.new_zeros(query.shape, dtype=torch.float32)
    for block in selection.neighborhoods():
        for groups in pad_neighborhoods(block, len(key)):
            local = linear_attention(query[groups.source], key[groups.target], value[groups.target], groups.target_mask)
            local = local * groups.source_mask[:, :, None, None]  # (S, n, H, d)
            message = message.index_add(0, groups.source.flatten(), local.flatten(0, 1))
    return message


class EncoderLayer(nn.Module):
    """x ← x + LayerNorm(MLP([x, LayerNorm(merge(attention(x, y)))])), the layer of LoFTR.

    With `input_dim` it is the network's first layer: three projections input_dim → dim go in front, and the projected
    x is what the residual adds to.
    """

    def __init__(self, dim: int, heads: int, input_dim: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.project_query: nn.Module = nn.Identity()
        self.project_key: nn.Module = nn.Identity()
        self.project_value: nn.Module = nn.Identity()
        if input_dim is not None:
            self.project_query = nn.Linear(input_dim, dim)
            self.project_key = nn.Linear(input_dim, dim)
            self.project_value = nn.Linear(input_dim, dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)
        self.norm_message = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm_update = nn.LayerNorm(dim)

    def forward(self, x: Tensor, y: Tensor, attend: Attention) -> Tensor:
        """x (B, N, D) reads from y (B, M, D) by `attend` → (B, N, C)."""
        projected = self.project_query(x)  # (B, N, C)
        query = self.query(projected).unflatten(-1, (self.heads, -1))  # (B, N, H, d)
        key = self.key(self.project_key(y)).unflatten(-1, (self.heads, -1))  # (B, M, H, d)
        value = self.value(self.project_value(y)).unflatten(-1, (self.heads, -1))  # (B, M, H, d)
        message = attend(query, key, value).flatten(-2)  # (B, N, C)
        message = self.norm_message(self.merge(message))  # (B, N, C)
        update = self.mlp(torch.cat([projected, message], dim=-1))  # (B, N, C)
        return projected + self.norm_update(update)  # (B, N, C)


class GeometryEncoder(nn.Module):
    """A small MLP of where a keypoint is, how large and how it is rotated; zero until it has learned something.

    Scale and orientation may be missing: a flag says so, and their inputs are zero.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.output = nn.Linear(64, dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, keypoints: Tensor, image_size: Tensor, scales: Tensor | None, oris: Tensor | None) -> Tensor:
        """keypoints (B, N, 2) pixels, image_size (B, 2), scales (B, N) pixels, oris (B, N) radians → (B, N, C)."""
        half = image_size.amax(-1)[:, None, None] / 2  # (B, 1, 1): one unit for x and y keeps the aspect
        position = (keypoints - (image_size[:, None] - 1) / 2) / half  # (B, N, 2), centre 0, longer side −1..1
        zero, one = torch.zeros_like(position[..., 0]), torch.ones_like(position[..., 0])  # (B, N)
        size = zero if scales is None else (scales / half[..., 0]).clamp(min=1e-6).log() / 4 + 1  # about −1..1
        rotation = [zero, zero] if oris is None else [oris.sin(), oris.cos()]
        flags = [zero if scales is None else one, zero if oris is None else one]
        return self.output(self.mlp(torch.stack([*position.unbind(-1), size, *rotation, *flags], dim=-1)))


@dataclass(frozen=True)
class Encoded:
    """Output of the network proper, before matching; of unit length unless the head is Sinkhorn's."""

    descriptors0: Tensor  # (B, N, C) x̂
    descriptors1: Tensor  # (B, M, C)
    coarse0: Tensor  # (B, N, C) f̂
    coarse1: Tensor  # (B, M, C)


class LinGlue(nn.Module):
    """The network. It encodes; `linglue.matching.match_descriptors` matches what it encoded.

    Example:
        >>> network = LinGlue(LinGlueConfig.preset("pair", input_dim=256))
        >>> sum(p.numel() for p in network.parameters())
        840960
    """

    dustbin: nn.Parameter | None  # learned score of optimal transport, where the configuration asks for it

    def __init__(self, config: LinGlueConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        # Whichever layer comes first brings the descriptors to the network's own size.
        layers = int(c.first_layer) + 2 * c.linear_blocks
        input_dims = [c.input_dim if c.input_dim != c.dim else None] + [None] * (layers - 1)
        stack = [EncoderLayer(c.dim, c.heads, input_dim) for input_dim in input_dims]
        self.first = stack.pop(0) if c.first_layer else None
        self.linear = nn.ModuleList(stack)  # self, cross, self, cross, …
        self.pairwise = nn.ModuleList(EncoderLayer(c.dim, c.heads) for _ in range(c.pairwise_layers))
        self.geometry = GeometryEncoder(c.dim) if c.geometry else None
        self.register_parameter("dustbin", nn.Parameter(torch.tensor(1.0)) if c.sinkhorn else None)

    @classmethod
    def from_pretrained(cls, name: str = "sift", device: str = "cpu") -> LinGlue:
        """The network that comes with the package for the features of front-end `name`, in evaluation mode."""
        from linglue.network.weights import find_weights, load_network

        return load_network(find_weights(name), device)[0]

    def forward(self, data: Mapping[str, Entry], matching: MatchingConfig | None = None) -> dict[str, Any]:
        """Encode and match, with LightGlue's dictionaries.

        Args:
            data: image0 and image1, each with keypoints (B, N, 2) and descriptors (B, N, D), and optionally
                image_size (B, 2) as (w, h), mask (B, N) bool, scales (B, N), oris (B, N).
            matching: how descriptors become matches.

        Returns:
            descriptors0/1 and coarse0/1 (B, N, C), matches0/1 (B, N) int64 with −1 for unmatched,
            matching_scores0/1 (B, N), and per pair matches (K, 2) and scores (K,).
        """
        matching = matching or MatchingConfig()
        entry0, entry1 = _with_size(data["image0"]), _with_size(data["image1"])
        encoded = self.encode(entry0, entry1)
        found = []
        for b, (view0, view1, valid0, valid1) in enumerate(views(entry0, entry1)):
            x0, x1 = encoded.descriptors0[b][valid0], encoded.descriptors1[b][valid1]  # (n, C), (m, C)
            found.append(match_descriptors(view0, view1, x0, x1, matching, self.dustbin))
        return {
            "descriptors0": encoded.descriptors0,
            "descriptors1": encoded.descriptors1,
            "coarse0": encoded.coarse0,
            "coarse1": encoded.coarse1,
            **_dense_matches(entry0, entry1, found),
        }

    def encode(self, entry0: Entry, entry1: Entry) -> Encoded:
        """New descriptors of both images; the entries are those of `forward`, with image_size."""
        x0, x1 = self._check(entry0, "image0"), self._check(entry1, "image1")  # (B, N, D), (B, M, D)
        mask0, mask1 = entry0.get("mask"), entry1.get("mask")
        if self.first is not None:
            x0, x1 = self.first(x0, x0, _over(mask0)), self.first(x1, x1, _over(mask1))  # (B, N, C), (B, M, C)
        if self.geometry is not None:
            x0, x1 = x0 + self._geometry(entry0), x1 + self._geometry(entry1)
        for number, layer in enumerate(self.linear):
            if number % 2 == 0:  # self
                x0, x1 = layer(x0, x0, _over(mask0)), layer(x1, x1, _over(mask1))
            else:  # cross: both images read the other as it was before, so swapping them swaps the result
                x0, x1 = layer(x0, x1, _over(mask1)), layer(x1, x0, _over(mask0))
        coarse0, coarse1 = self._finish(x0), self._finish(x1)
        if self.pairwise:
            selections = self._select(entry0, entry1, coarse0, coarse1)
            for layer in self.pairwise:
                x0, x1 = (
                    layer(x0, x1, _within([s for s, _ in selections], mask0, mask1)),
                    layer(x1, x0, _within([s for _, s in selections], mask1, mask0)),
                )
        return Encoded(self._finish(x0), self._finish(x1), coarse0, coarse1)

    @torch.no_grad()
    def initialise_identity(self, projection: Tensor | None = None) -> None:
        """Make the network return its input, projected by `projection` (D, C) of orthonormal columns, e.g. from PCA.

        Each layer's last LayerNorm gets zero gain, so no layer adds anything until it is trained. The projection is
        scaled so that channels of unit descriptors have the size that the layers' norms give to messages: at their own
        size the messages would drown them in the MLPs, and attention would hardly tell them apart.
        """
        size = self.config.dim**0.5
        for module in self.modules():
            if isinstance(module, EncoderLayer):
                nn.init.zeros_(module.norm_update.weight)
                nn.init.zeros_(module.norm_update.bias)
                for linear in (module.project_query, module.project_key, module.project_value):
                    if isinstance(linear, nn.Linear):
                        wanted = (self.config.input_dim, self.config.dim)
                        if projection is None or tuple(projection.shape) != wanted:
                            have = None if projection is None else tuple(projection.shape)
                            raise LinGlueError(f"projection has shape {have}, expected {wanted}")
                        linear.weight.copy_(size * projection.T)
                        nn.init.zeros_(linear.bias)

    def _check(self, entry: Entry, name: str) -> Tensor:
        descriptors = entry["descriptors"]
        if descriptors.ndim != 3 or descriptors.shape[-1] != self.config.input_dim:
            raise LinGlueError(
                f"{name}: descriptors have shape {tuple(descriptors.shape)}, "
                f"expected (B, N, {self.config.input_dim}) for this network"
            )
        if not torch.isfinite(descriptors).all():
            raise LinGlueError(f"{name}: descriptors contain NaN or infinite values")
        return descriptors

    def _geometry(self, entry: Entry) -> Tensor:
        assert self.geometry is not None
        size = entry["image_size"].to(entry["keypoints"])
        return self.geometry(entry["keypoints"], size, entry.get("scales"), entry.get("oris"))

    def _finish(self, x: Tensor) -> Tensor:
        return x.float() if self.config.sinkhorn else F.normalize(x.float(), dim=-1)

    def _select(
        self, entry0: Entry, entry1: Entry, coarse0: Tensor, coarse1: Tensor
    ) -> list[tuple[Selection, Selection]]:
        """Per pair: the neighborhoods in which image 0 reads image 1, and those in which image 1 reads image 0."""
        if self.config.select_from_input:
            coarse0, coarse1 = entry0["descriptors"], entry1["descriptors"]
        selections = []
        for b, (view0, view1, valid0, valid1) in enumerate(views(entry0, entry1)):
            nearest0, nearest1 = nearest_both_ways(coarse0[b][valid0].detach(), coarse1[b][valid1].detach())
            how = (self.config.expansion, self.config.separation)
            selections.append(
                (
                    select(view0, view1, nearest0, nearest1, *how),
                    select(view1, view0, nearest1, nearest0, *how),
                )
            )
        return selections


def _over(mask: Tensor | None) -> Any:
    """Linear attention over all keypoints that `mask` (B, M) allows."""
    return lambda query, key, value: linear_attention(query, key, value, mask)


def _within(selections: list[Selection], query_mask: Tensor | None, key_mask: Tensor | None) -> Any:
    """Attention of each pair of the batch within its own neighborhoods; padding neither reads nor is read."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        messages = []
        for b, selection in enumerate(selections):
            reads = query[b] if query_mask is None else query[b][query_mask[b]]  # (n, H, d)
            keys = key[b] if key_mask is None else key[b][key_mask[b]]  # (m, H, d)
            values = value[b] if key_mask is None else value[b][key_mask[b]]  # (m, H, d)
            message = pairwise_attention(reads, keys, values, selection)  # (n, H, d)
            if query_mask is not None:
                message = message.new_zeros(query[b].shape).masked_scatter(query_mask[b, :, None, None], message)
            messages.append(message)
        return torch.stack(messages)  # (B, N, H, d)

    return attend


def _with_size(entry: Entry) -> Entry:
    """The entry with image_size (B, 2): where it is missing, the smallest image that has all keypoints."""
    if "image_size" in entry:
        return entry
    keypoints = entry["keypoints"]  # (B, N, 2)
    if "mask" in entry:
        keypoints = keypoints * entry["mask"][..., None]
    size = keypoints.amax(1) if keypoints.shape[1] else keypoints.new_zeros(len(keypoints), 2)  # (B, 2)
    return {**entry, "image_size": size.clamp(min=0) + 1}


def _valid(entry: Entry, b: int) -> Tensor:
    """(N,) bool: which keypoints of item b are real."""
    mask = entry.get("mask")
    keypoints = entry["keypoints"]
    return mask[b] if mask is not None else torch.ones(keypoints.shape[1], dtype=torch.bool, device=keypoints.device)


def _view(entry: Entry, b: int, valid: Tensor) -> View:
    optional = {name: entry[name][b][valid] for name in ("scales", "oris") if name in entry}
    return View(entry["keypoints"][b][valid], entry["image_size"][b], **optional)


def views(entry0: Entry, entry1: Entry) -> list[tuple[View, View, Tensor, Tensor]]:
    """Per pair: both views without padding, and the masks that remove it."""
    items = []
    for b in range(len(entry0["keypoints"])):
        valid0, valid1 = _valid(entry0, b), _valid(entry1, b)
        items.append((_view(entry0, b, valid0), _view(entry1, b, valid1), valid0, valid1))
    return items


def _dense_matches(entry0: Entry, entry1: Entry, found: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """LightGlue's output keys; indices refer to the padded keypoints that came in."""
    shape0, shape1 = entry0["keypoints"].shape[:2], entry1["keypoints"].shape[:2]
    device = entry0["keypoints"].device
    matches0 = torch.full(shape0, -1, dtype=torch.int64, device=device)
    matches1 = torch.full(shape1, -1, dtype=torch.int64, device=device)
    scores0, scores1 = torch.zeros(shape0, device=device), torch.zeros(shape1, device=device)
    pairs = []
    for b, (pair, score) in enumerate(found):
        rows = _valid(entry0, b).nonzero()[:, 0][pair[:, 0]]  # (K,)
        columns = _valid(entry1, b).nonzero()[:, 0][pair[:, 1]]  # (K,)
        matches0[b, rows], matches1[b, columns] = columns, rows
        scores0[b, rows], scores1[b, columns] = score.to(scores0), score.to(scores1)
        pairs.append(torch.stack([rows, columns], dim=1))
    return {
        "matches0": matches0,
        "matches1": matches1,
        "matching_scores0": scores0,
        "matching_scores1": scores1,
        "matches": pairs,
        "scores": [score for _, score in found],
    }


def collate(features: Sequence[Features], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """One image of the network's input: tensors (B, N, …) padded with zeros to the largest N, and mask (B, N)."""
    entries = [f.tensors() for f in features]
    names = set.intersection(*(set(e) for e in entries)) - {"image_size"}
    batch = {name: pad_sequence([e[name][0] for e in entries], batch_first=True) for name in sorted(names)}
    batch["image_size"] = torch.cat([e["image_size"] for e in entries])  # (B, 2)
    if "scales" in batch:
        batch["scales"] = batch["scales"].clamp(min=1e-6)  # padding must have a logarithm
    lengths = torch.tensor([len(f) for f in features])
    batch["mask"] = torch.arange(batch["keypoints"].shape[1]) < lengths[:, None]
    return {name: value.to(device) for name, value in batch.items()}
