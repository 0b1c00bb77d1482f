"""LinGlue: two sets of keypoint descriptors in, descriptors in which nearest neighbours are matches out.

descriptors → first layer → L1 × (self, cross) linear attention → f̂ → L2 × pairwise neighborhood attention → x̂
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.core.stopwatch import Stopwatch
from linglue.errors import LinGlueError
from linglue.matching import completion, local_affine
from linglue.matching.consensus import agreeing
from linglue.matching.distance import View, filtered_matches
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Selection, select
from linglue.matching.sinkhorn import transport_matches
from linglue.network.attention import linear_attention, pairwise_attention
from linglue.network.config import LinGlueConfig
from linglue.network.encoder import EncoderLayer, GeometryEncoder

Entry = Mapping[str, Tensor]  # one image of the input dictionary


@dataclass(frozen=True)
class Encoded:
    """Output of the network proper, before matching; of unit length unless the head is Sinkhorn's."""

    descriptors0: Tensor  # (B, N, C) x̂
    descriptors1: Tensor  # (B, M, C)
    coarse0: Tensor  # (B, N, C) f̂
    coarse1: Tensor  # (B, M, C)


class LinGlue(nn.Module):
    """The network with its matching head; input and output dictionaries are LightGlue's."""

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
        if c.sinkhorn:
            self.dustbin = nn.Parameter(torch.tensor(1.0))

    def forward(self, data: Mapping[str, Entry]) -> dict[str, Any]:
        """data: image0 and image1 with keypoints (B, N, 2), descriptors (B, N, D), image_size (B, 2) as (w, h), and
        optionally mask (B, N) bool, scales (B, N), oris (B, N).

        Returns descriptors0/1 and coarse0/1 (B, N, C), matches0/1 (B, N) int64 with −1 for unmatched,
        matching_scores0/1 (B, N), and per pair matches (K, 2) and scores (K,).
        """
        entry0, entry1 = data["image0"], data["image1"]
        encoded = self.encode(entry0, entry1)
        found = [
            self.match(view0, view1, encoded.descriptors0[b][valid0], encoded.descriptors1[b][valid1])
            for b, (view0, view1, valid0, valid1) in enumerate(views(entry0, entry1))
        ]
        return {
            "descriptors0": encoded.descriptors0,
            "descriptors1": encoded.descriptors1,
            "coarse0": encoded.coarse0,
            "coarse1": encoded.coarse1,
            **_dense_matches(entry0, entry1, found),
        }

    def encode(self, entry0: Entry, entry1: Entry) -> Encoded:
        """The network proper: new descriptors of both images, for training and for `match`."""
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

    def match(
        self, view0: View, view1: View, x0: Tensor, x1: Tensor, watch: Stopwatch | None = None
    ) -> tuple[Tensor, Tensor]:
        """Pairs (K, 2) and scores (K,) from the new descriptors (N, C), (M, C) of one pair, best first."""
        watch = watch or Stopwatch(x0.device)
        if self.config.sinkhorn:
            with watch.stage("matching"):
                return transport_matches(x0, x1, self.dustbin)
        with watch.stage("matching"):
            nearest0, nearest1 = nearest_both_ways(x0, x1)
        shaped = view0.shaped and view1.shaped
        with watch.stage("filter"):
            config = local_affine.FilterConfig() if shaped else local_affine.COARSE
            accepted = agreeing(view0, view1, filtered_matches(view0, view1, nearest0, nearest1, config))
        with watch.stage("completion"):
            guided = completion.CompletionConfig() if shaped else completion.COARSE
            return completion.complete(view0, view1, x0, x1, accepted, guided)

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
            with torch.autocast(coarse0.device.type, enabled=False):  # bfloat16 cannot tell near from nearest
                nearest0, nearest1 = nearest_both_ways(coarse0[b][valid0].detach(), coarse1[b][valid1].detach())
            how = (self.config.expansion, self.config.separation)
            selections.append(
                (
                    select(view0.points, view1.points, nearest0, nearest1, view0.size, view1.size, *how),
                    select(view1.points, view0.points, nearest1, nearest0, view1.size, view0.size, *how),
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
