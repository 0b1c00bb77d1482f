"""LinGlue: two sets of keypoint descriptors in, descriptors in which nearest neighbours are matches out.

descriptors → first layer → L1 × (self, cross) linear attention → f̂ → L2 × pairwise neighborhood attention → x̂
descriptors → context: attention to few keypoints (`linglue.network.context`) → x̂, where the configuration asks for it

Images of a batch may have different numbers of keypoints (`linglue.network.entries`). Inside, the keypoints of all
images lie behind each other in one matrix of tokens (T, C), without padding: whatever treats keypoints one by one is
one product for all of them, and attention is told where each image begins and ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.errors import LinGlueError
from linglue.features.registry import DEFAULT_FEATURES
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Selection, all_groups, select
from linglue.matching.together import team
from linglue.matching.voting import Voting
from linglue.network.context import Context, most_similar
from linglue.network.entries import (
    Entry,
    centred,
    check,
    dense_matches,
    matchable,
    pad,
    token_slices,
    unpad,
    view,
    with_size,
)
from linglue.network.layers import EncoderLayer, GeometryEncoder, exact
from linglue.network.weights import LinGlueConfig, WeightsInfo, read_info, read_weights, require_weights, write_weights

LONE = 0.45  # similarity to which a keypoint had rather have no partner, where training with optimal transport begins


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
        self.context = Context(c.context, c.input_dim, c.dim) if c.context else None
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

    def sha256(self) -> str:
        """Of its configuration and all its weights: other networks, other digests.

        Returns:
            64 hexadecimal digits.

        Example:
            >>> LinGlue.from_pretrained("sift").sha256() == LinGlue.from_pretrained("sift").sha256()
            True
        """
        digest = hashlib.sha256(self.config.to_json().encode())
        for name, tensor in self.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

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
        chosen = [] if self.context is None else self._candidates(pairs)
        x = self._start(pairs) if known[0] == known[-1] else torch.cat([self._start([image]) for image in pairs])
        if self.context is not None:
            x = self.context(x, images, [centred(view(image)) for image in pairs], chosen, other)
        for number, layer in enumerate(self.linear[1:], 1):  # both images read the other as it was before
            x = layer(x, images, own if number % 2 == 0 else other)
        coarse = self._finish(x)  # (T, C)
        if self.pairwise:
            source = [p["descriptors"] for p in pairs] if self.config.select_from_input else [coarse[i] for i in images]
            selected = self._select(pairs, source, other)
            # Without separation the tables take too much memory to be kept from one layer to the next.
            kept = list(all_groups(selected, images, other)) if self.config.separation else None
            for layer in self.pairwise:
                groups = all_groups(selected, images, other) if kept is None else kept
                x = cast(EncoderLayer, layer).forward_within(x, groups)
        final = self._finish(x) if self.pairwise else coarse
        sides = (entry0, images[:batch]), (entry1, images[batch:])
        return Encoded(*(pad([y[i] for i in part], entry) for y in (final, coarse) for entry, part in sides))

    @torch.no_grad()
    def initialise_identity(self, projection: Tensor | None = None) -> None:
        """Make the network return its input, projected by `projection` (D, C) of orthonormal columns, e.g. from PCA.

        Each layer's last LayerNorm gets zero gain, so no layer adds anything until it is trained. The projection, or
        the input where there is none, is scaled so that channels of unit descriptors have the size that the layers'
        norms give to messages: at their own size the messages would drown them in the MLPs, and attention would
        hardly tell them apart. The dustbin of optimal transport starts among the similarities: from far below them it
        takes thousands of steps, and nothing else learns.

        Args:
            projection: (D, C); None: the network has the size of its input.

        Example:
            >>> LinGlue(LinGlueConfig.preset("pair", input_dim=64)).initialise_identity()
        """
        size, projected = self.config.dim**0.5, False
        if self.dustbin is not None:
            self.dustbin.fill_(LONE * size)
        for module in self.modules():
            if isinstance(module, Context):
                module.initialise_identity(projection)
            elif isinstance(module, EncoderLayer):
                nn.init.zeros_(module.norm_update.weight)
                nn.init.zeros_(module.norm_update.bias)
                for linear in (module.project_query, module.project_key, module.project_value):
                    if isinstance(linear, nn.Linear):
                        projected, wanted = True, (self.config.input_dim, self.config.dim)
                        if projection is None or tuple(projection.shape) != wanted:
                            have = None if projection is None else tuple(projection.shape)
                            raise LinGlueError(f"projection has shape {have}, expected {wanted}")
                        linear.weight.copy_(size * projection.T)
                        nn.init.zeros_(linear.bias)
        if not projected and (self.first is not None or len(self.linear)):
            self.config = replace(self.config, input_scale=size)

    def _start(self, images: Sequence[Entry]) -> Tensor:
        """Tokens (T, C) of some images in front of the first cross attention; taken from where they are known."""
        if all("encoded" in image for image in images):
            return _joined([image["encoded"] for image in images])
        x, tokens, own = _joined([i["descriptors"] for i in images]), token_slices(images), range(len(images))
        if self.context is not None:
            return self.context.start(x, tokens, [centred(view(image)) for image in images])
        if self.config.input_scale != 1:
            x = x * self.config.input_scale  # (T, D)
        if self.first is not None:
            x = self.first(x, tokens, own)  # (T, C)
        if self.geometry is not None:
            x = x + torch.cat([self._place(image) for image in images])
        return self.linear[0](x, tokens, own) if len(self.linear) else x

    def _candidates(self, images: Sequence[Entry]) -> list[Tensor]:
        """(N, k) of every image: whom its keypoints read in the other image of its pair."""
        rows, count = [image["descriptors"] for image in images], cast(Context, self.context).candidates
        pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
        with exact(rows[0]):
            listed = [most_similar(*pair, count) for pair in pairs]
        return [there for there, _ in listed] + [back for _, back in listed]

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
