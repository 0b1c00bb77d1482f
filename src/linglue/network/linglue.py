"""LinGlue: two sets of keypoint descriptors in, descriptors in which nearest neighbours are matches out.

descriptors → first layer → L1 × (self, cross) linear attention → f̂ → L2 × pairwise neighborhood attention → x̂

Images of a batch may have different numbers of keypoints. An entry holds one image of every pair of a batch: keypoints
(B, N, 2), descriptors (B, N, D), image_size (B, 2), optionally scales (B, N), oris (B, N), and mask (B, N), which is
False for padding; single images have no padding. Inside, the keypoints of all images lie behind each other in one
matrix of tokens (T, C), without padding: whatever treats keypoints one by one is one product for all of them, and
attention is told where each image begins and ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from linglue.errors import LinGlueError
from linglue.features.registry import DEFAULT_FEATURES
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints, Selection, all_groups, select
from linglue.matching.together import team
from linglue.matching.voting import Voting
from linglue.network.layers import EncoderLayer, GeometryEncoder, exact
from linglue.network.weights import LinGlueConfig, WeightsInfo, read_info, read_weights, require_weights, write_weights

Entry = Mapping[str, Tensor]  # a batch of images, or one image without the axis B


@dataclass(frozen=True)
class Encoded:
    """Output of the network; of unit length unless the head is Sinkhorn's, and zero for padding."""

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
        stack = [EncoderLayer(c.dim, c.heads, input_dim) for input_dim in input_dims[:layers]]
        self.first = stack.pop(0) if c.first_layer else None
        self.linear = nn.ModuleList(stack)  # self, cross, self, cross, …
        self.pairwise = nn.ModuleList(EncoderLayer(c.dim, c.heads) for _ in range(c.pairwise_layers))
        self.geometry = GeometryEncoder(c.dim) if c.geometry else None
        self.voting = Voting(c.voting) if c.voting else None
        self.register_parameter("dustbin", nn.Parameter(torch.tensor(1.0)) if c.sinkhorn else None)

    @classmethod
    def from_pretrained(cls, name: str = DEFAULT_FEATURES, device: str = "cpu") -> LinGlue:
        """The network that comes with the package for the features of front-end `name`, in evaluation mode.

        Args:
            name: of the front-end.
            device: where it runs.

        Returns:
            The network.

        Example:
            >>> LinGlue.from_pretrained("sift").config.input_dim
            128
        """
        return cls.load(require_weights(name), device)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> LinGlue:
        """The network in the weights file `path`, in float32 and evaluation mode, on `device`.

        Args:
            path: of `save` or of `linglue train`.
            device: where it runs.

        Returns:
            The network.

        Example:
            >>> LinGlue.load("mine.safetensors")  # doctest: +SKIP
        """
        network = cls(read_info(path).config)
        network.load_state_dict(read_weights(path, network.state_dict()))
        return network.to(device).eval()

    def save(self, path: str | Path, kind: str, preset: str, licence: str, training: str) -> None:
        """Write the weights and what they are; the fields of `WeightsInfo`.

        Args:
            path: the file, .safetensors.
            kind: of the features it is made for.
            preset: name of the configuration.
            licence: of the weights.
            training: what it learned from, in a few words.

        Example:
            >>> network.save("mine.safetensors", "sift", "geo", "Apache-2.0", "my images")  # doctest: +SKIP
        """
        write_weights(path, self.state_dict(), WeightsInfo(kind, preset, licence, training, self.config))

    def forward(self, data: Mapping[str, Entry], matching: MatchingConfig | None = None) -> dict[str, Any]:
        """Encode and match, with LightGlue's dictionaries.

        Args:
            data: image0 and image1, each with keypoints (B, N, 2) and descriptors (B, N, D), and optionally
                image_size (B, 2) as (w, h), mask (B, N) bool, scales (B, N), oris (B, N).
            matching: how descriptors become matches.

        Returns:
            descriptors0/1 and coarse0/1 (B, N, C), matches0/1 (B, N) int64 with −1 for unmatched,
            matching_scores0/1 (B, N), and per pair matches (K, 2) and scores (K,).

        Example:
            >>> data = {"image0": features0.tensors(), "image1": features1.tensors()}  # doctest: +SKIP
            >>> LinGlue.from_pretrained()(data)["matches"]  # doctest: +SKIP
        """
        entry0, entry1 = with_size(data["image0"]), with_size(data["image1"])
        encoded = self.encode(entry0, entry1)
        found = [
            match_descriptors(*pair, matching or MatchingConfig(), self.dustbin, self.voting)
            for pair in matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)
        ]
        return {**vars(encoded), **dense_matches(entry0, entry1, found)}

    def encode_image(self, entry: Entry) -> Tensor:
        """What depends on one image only: (B, N, C) tokens in front of the first cross attention, zero for padding.

        As `entry["encoded"]` it saves `encode` this work: one image against many costs less per pair.

        Args:
            entry: image0 or image1 of `forward`, with image_size.

        Returns:
            (B, N, C).

        Example:
            >>> entry["encoded"] = network.encode_image(entry)  # doctest: +SKIP
        """
        images = unpad(entry)
        with team(entry["keypoints"].device):
            return pad(self._start(images).split([len(image["keypoints"]) for image in images]), entry)

    def encode(self, entry0: Entry, entry1: Entry) -> Encoded:
        """New descriptors of both images.

        Args:
            entry0: image0 of `forward`, with image_size.
            entry1: image1.

        Returns:
            Final and coarse descriptors of both, (B, N, C) each.

        Example:
            >>> network.encode(features0.tensors(), features1.tensors()).descriptors0  # doctest: +SKIP
        """
        with team(entry0["keypoints"].device):
            check(entry0, "image0", self.config.input_dim)
            check(entry1, "image1", self.config.input_dim)
            return self._encode(entry0, entry1)

    def _encode(self, entry0: Entry, entry1: Entry) -> Encoded:
        pairs, batch = [*unpad(entry0), *unpad(entry1)], len(entry0["keypoints"])
        images = token_slices(pairs)
        own = list(range(len(images)))
        other = own[batch:] + own[:batch]
        known = ["encoded" in image for image in pairs]  # of one image of each pair, of both or of none
        x = self._start(pairs) if known[0] == known[-1] else torch.cat([self._start([image]) for image in pairs])
        for number, layer in enumerate(self.linear[1:], 1):  # both images read the other as it was before
            x = layer(x, images, own if number % 2 == 0 else other)
        coarse = self._finish(x)  # (T, C)
        if self.pairwise:
            source = [p["descriptors"] for p in pairs] if self.config.select_from_input else [coarse[i] for i in images]
            chosen = self._select(pairs, source, other)
            # Without separation the tables take too much memory to be kept from one layer to the next.
            kept = list(all_groups(chosen, images, other)) if self.config.separation else None
            for layer in self.pairwise:
                groups = all_groups(chosen, images, other) if kept is None else kept
                x = cast(EncoderLayer, layer).forward_within(x, groups)
        final = self._finish(x) if self.pairwise else coarse
        sides = (entry0, images[:batch]), (entry1, images[batch:])
        return Encoded(*(pad([y[i] for i in part], entry) for y in (final, coarse) for entry, part in sides))

    @torch.no_grad()
    def initialise_identity(self, projection: Tensor | None = None) -> None:
        """Make the network return its input, projected by `projection` (D, C) of orthonormal columns, e.g. from PCA.

        Each layer's last LayerNorm gets zero gain, so no layer adds anything until it is trained. The projection is
        scaled so that channels of unit descriptors have the size that the layers' norms give to messages: at their own
        size the messages would drown them in the MLPs, and attention would hardly tell them apart.

        Args:
            projection: (D, C); None: the network has the size of its input.

        Example:
            >>> LinGlue(LinGlueConfig.preset("pair", input_dim=64)).initialise_identity()
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

    def _start(self, images: Sequence[Entry]) -> Tensor:
        """Tokens (T, C) of some images in front of the first cross attention; taken from where they are known."""
        if all("encoded" in image for image in images):
            return _joined([image["encoded"] for image in images])
        x, tokens, own = _joined([i["descriptors"] for i in images]), token_slices(images), range(len(images))
        if self.config.input_scale != 1:
            x = x * self.config.input_scale  # (T, D)
        if self.first is not None:
            x = self.first(x, tokens, own)  # (T, C)
        if self.geometry is not None:
            x = x + torch.cat([self._place(image) for image in images])
        return self.linear[0](x, tokens, own) if len(self.linear) else x

    def _place(self, image: Entry) -> Tensor:
        """(N, C) from where the keypoints are."""
        size = image["image_size"].to(image["keypoints"])
        return cast(GeometryEncoder, self.geometry)(image["keypoints"], size, image.get("scales"), image.get("oris"))

    def _finish(self, x: Tensor) -> Tensor:
        return x.float() if self.config.sinkhorn else F.normalize(x.float(), dim=-1)

    def _select(self, images: Sequence[Entry], x: Sequence[Tensor], other: Sequence[int]) -> list[Selection]:
        """For every image the neighborhoods in which it reads the other image of its pair."""
        views, how = [view(image) for image in images], (self.config.expansion, self.config.separation)
        with exact(x[0]):
            nearest = [nearest_both_ways(x[i].detach(), x[other[i]].detach()) for i in range(len(x) // 2)]
        nearest += [(back, there) for there, back in nearest]
        return [select(views[i], views[other[i]], *nearest[i], *how) for i in range(len(x))]


def _joined(rows: Sequence[Tensor]) -> Tensor:
    """One behind the other, without a copy where there is only one."""
    return torch.cat(list(rows)) if len(rows) > 1 else rows[0]


def check(entry: Entry, name: str, dim: int) -> None:
    """Refuse descriptors of another shape than (B, N, dim), or with values that are no numbers.

    Args:
        entry: the images.
        name: of the entry, for the complaint.
        dim: what the network takes.
    """
    descriptors = entry["descriptors"]
    if descriptors.ndim != 3 or descriptors.shape[-1] != dim:
        raise LinGlueError(
            f"{name}: descriptors have shape {tuple(descriptors.shape)}, expected (B, N, {dim}) for this network"
        )
    if not torch.isfinite(descriptors).all():
        raise LinGlueError(f"{name}: descriptors contain NaN or infinite values")


def collate(entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Entries of one image each (B = 1) as one entry, padded with zeros to the largest N, and with a mask."""
    names = set.intersection(*(set(e) for e in entries)) - {"image_size", "mask"}
    batch = {name: pad_sequence([e[name][0] for e in entries], batch_first=True) for name in sorted(names)}
    batch["image_size"] = torch.cat([e["image_size"] for e in entries])  # (B, 2)
    lengths = torch.tensor([e["keypoints"].shape[1] for e in entries])
    mask = torch.arange(batch["keypoints"].shape[1]) < lengths[:, None]
    return {**batch, "mask": mask.to(batch["keypoints"].device)}


def unpad(entry: Entry) -> list[dict[str, Tensor]]:
    """The single images of an entry, without padding."""
    mask, images = entry.get("mask"), []
    for b in range(len(entry["keypoints"])):
        image = {name: value[b] for name, value in entry.items() if name != "mask"}
        if mask is not None:
            image = {name: value if name == "image_size" else value[mask[b]] for name, value in image.items()}
        images.append(image)
    return images


def token_slices(images: Sequence[Entry]) -> list[slice]:
    """Where the keypoints of each image are when those of all lie one behind the other."""
    ends = [0, *accumulate(len(image["keypoints"]) for image in images)]
    return [slice(*bounds) for bounds in pairwise(ends)]


def pad(rows: Sequence[Tensor], entry: Entry) -> Tensor:
    """Rows (n, C) of single images as (B, N, C), each where the entry has its keypoints and zero elsewhere."""
    mask = entry.get("mask")
    if mask is None:
        return torch.stack(list(rows)) if len(rows) > 1 else rows[0][None]
    return rows[0].new_zeros(*mask.shape, rows[0].shape[-1]).masked_scatter(mask[..., None], torch.cat(list(rows)))


def view(image: Entry) -> Keypoints:
    """Where the keypoints of a single image are."""
    return Keypoints(image["keypoints"], image["image_size"], image.get("scales"), image.get("oris"))


def matchable(
    entry0: Entry, entry1: Entry, x0: Tensor, x1: Tensor
) -> list[tuple[Keypoints, Keypoints, Tensor, Tensor]]:
    """What `match_descriptors` takes, for every pair: both views, and their new descriptors of x0, x1 (B, N, C).

    Args:
        entry0: images 0 of the pairs.
        entry1: images 1 of the pairs.
        x0: (B, N, C) new descriptors of images 0.
        x1: (B, M, C) of images 1.
    """
    images0, images1 = unpad({**entry0, "descriptors": x0}), unpad({**entry1, "descriptors": x1})
    return [
        (view(one), view(two), one["descriptors"], two["descriptors"])
        for one, two in zip(images0, images1, strict=True)
    ]


def with_size(entry: Entry) -> Entry:
    """The entry with image_size (B, 2): where it is missing, the smallest image that has all keypoints."""
    if "image_size" in entry:
        return entry
    keypoints = entry["keypoints"]  # (B, N, 2)
    if "mask" in entry:
        keypoints = keypoints * entry["mask"][..., None]
    size = keypoints.amax(1) if keypoints.shape[1] else keypoints.new_zeros(len(keypoints), 2)  # (B, 2)
    return {**entry, "image_size": size.clamp(min=0) + 1}


def dense_matches(entry0: Entry, entry1: Entry, found: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """LightGlue's output keys from pairs (K, 2) and scores (K,); indices refer to the padded keypoints.

    Args:
        entry0: images 0 of the pairs.
        entry1: images 1 of the pairs.
        found: per pair the matches (K, 2) and their scores (K,).
    """
    shape0, shape1 = entry0["keypoints"].shape[:2], entry1["keypoints"].shape[:2]
    device = entry0["keypoints"].device
    matches0 = torch.full(shape0, -1, dtype=torch.int64, device=device)
    matches1 = torch.full(shape1, -1, dtype=torch.int64, device=device)
    scores0, scores1 = torch.zeros(shape0, device=device), torch.zeros(shape1, device=device)
    pairs = []
    for b, (pair, score) in enumerate(found):
        rows, columns = _padded(entry0, b, pair[:, 0]), _padded(entry1, b, pair[:, 1])  # (K,)
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


def _padded(entry: Entry, b: int, index: Tensor) -> Tensor:
    """Indices of unpadded keypoints of image b as indices of the padded."""
    return index if "mask" not in entry else entry["mask"][b].nonzero()[:, 0][index]
