"""SuperGlue (Sarlin et al., 2020) on SuperPoint: the network of `transformers` with Magic Leap's weights.

The weights are for non-commercial research only. Images of any size and number of keypoints go through the layers
unpadded, as in the original code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from linglue.core.fingerprint import code_sha256, file_sha256
from linglue.core.optional import need
from linglue.core.progress import Stopwatch
from linglue.errors import LinGlueError
from linglue.evaluation.peers import find_peer_file
from linglue.types import Features, Matches

if TYPE_CHECKING:
    from linglue.matcher import MatcherConfig

HEADS = 4
THRESHOLD = 0.2  # the original's: matches below are dropped
_RENAMED = (
    (r"\.attn\.merge\.", ".attention.output.dense."),
    (r"\.attn\.proj\.0\.", ".attention.self.query."),
    (r"\.attn\.proj\.1\.", ".attention.self.key."),
    (r"\.attn\.proj\.2\.", ".attention.self.value."),
    (r"\.mlp\.0\.", ".mlp.0.linear."),
    (r"\.mlp\.1\.", ".mlp.0.batch_norm."),
    (r"\.mlp\.3\.", ".mlp.1."),
    (r"^final_proj\.", "final_projection.final_proj."),
)


class SuperGlue:
    """Matchers `superglue` and `superglue-10`, with the outdoor weights.

    Args:
        config: its features must be superpoint. Weights come from LINGLUE_PEERS.
        iterations: of Sinkhorn's algorithm; 100 is the original's setting, 10 loses little and is faster.
        untrained: keep random weights, where only its time is asked.
    """

    def __init__(self, config: MatcherConfig, iterations: int = 100, untrained: bool = False) -> None:
        if config.features != "superpoint":
            raise LinGlueError(
                f"matcher superglue has no weights for {config.features!r} features, expected superpoint"
            )
        self.path = None if untrained else find_peer_file("superglue_outdoor.pth", "matcher superglue")
        self._transformers = need("transformers", "matcher superglue")
        self._module = need("transformers.models.superglue.modeling_superglue", "matcher superglue")
        shape = self._transformers.SuperGlueConfig(
            keypoint_encoder_sizes=[32, 64, 128, 256],
            gnn_layers_types=["self", "cross"] * 9,
            sinkhorn_iterations=iterations,
            attn_implementation="eager",
        )
        net = self._module.SuperGlueForKeypointMatching(shape)
        del net.keypoint_detector  # ours finds the keypoints
        if self.path is not None:
            net.load_state_dict(convert_state(torch.load(self.path, map_location="cpu", weights_only=True)))
        self.net = net.eval().to(config.device)
        self.device = config.device
        self.iterations = iterations

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {
            "weights_sha256": file_sha256(self.path) if self.path else None,
            "iterations": self.iterations,
            "threshold": THRESHOLD,
            "transformers": self._transformers.__version__,
            "code": code_sha256("evaluation/peers/superglue.py"),
        }

    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, best first.

        Args:
            features0: of image 0.
            features1: of image 1.
        """
        return self.match_in_parts(features0, features1, Stopwatch(self.device))

    @torch.inference_mode()
    def match_in_parts(self, features0: Features, features1: Features, watch: Stopwatch) -> Matches:
        """The same, with the seconds of its two parts.

        Args:
            features0: of image 0.
            features1: of image 1.
            watch: takes "network" and "matching", which is Sinkhorn's algorithm.
        """
        if min(len(features0), len(features1)) == 0:
            return Matches.of(features0, features1, torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0))
        with watch.stage("network"):
            x0, x1 = self._network(features0, features1)
        with watch.stage("matching"):
            similarity = x0 @ x1.transpose(1, 2) / x0.shape[2] ** 0.5  # (1, N, M)
            plan = self._module.log_optimal_transport(similarity, self.net.bin_score, self.iterations)
            plan = plan[0, :-1, :-1].exp()  # (N, M)
            best0, best1 = plan.max(dim=1), plan.argmax(dim=0)  # (N,), (M,)
            source = torch.arange(len(features0), device=plan.device)
            keep = (best1[best0.indices] == source) & (best0.values > THRESHOLD)
            order = torch.argsort(best0.values[keep], descending=True, stable=True)
            pairs = torch.stack([source[keep], best0.indices[keep]], dim=1)  # (K, 2)
        return Matches.of(features0, features1, pairs[order], best0.values[keep][order])

    def _network(self, features0: Features, features1: Features) -> tuple[Tensor, Tensor]:
        """(1, N, 256) and (1, M, 256) new descriptors."""
        x0, x1 = self._encode(features0), self._encode(features1)  # (1, N, 256), (1, M, 256)
        for layer, kind in zip(self.net.gnn.layers, self.net.gnn.layers_types, strict=True):
            source0, source1 = (x1, x0) if kind == "cross" else (None, None)
            x0, x1 = (
                x0 + layer(x0, encoder_hidden_states=source0)[0],
                x1 + layer(x1, encoder_hidden_states=source1)[0],
            )
        return self.net.final_projection(x0), self.net.final_projection(x1)

    def _encode(self, features: Features) -> Tensor:
        """(1, N, 256) descriptors with positions and scores added."""
        tensors = features.tensors(self.device)
        width, height = features.image_size
        keypoints = self._module.normalize_keypoints(tensors["keypoints"], height, width)  # (1, N, 2)
        scores = torch.as_tensor(features.scores, device=self.device)[None]  # (1, N)
        encoded: Tensor = tensors["descriptors"] + self.net.keypoint_encoder(keypoints, scores)[0]
        return encoded


def superglue_10(config: MatcherConfig, untrained: bool = False) -> SuperGlue:
    """SuperGlue with 10 iterations.

    Args:
        config: as for `SuperGlue`.
        untrained: as for `SuperGlue`.
    """
    return SuperGlue(config, 10, untrained)


def convert_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Magic Leap's state dict under the names and in the layout of `transformers`.

    Convolutions of width 1 become linear layers. The original keeps the channels of its attention heads interleaved,
    transformers one head after the other.

    Args:
        state: of the original.
    """
    converted = {}
    for name, value in state.items():
        if value.ndim == 3:
            value = value[..., 0]
        if ".attn.proj." in name:
            value = value.unflatten(0, (-1, HEADS)).transpose(0, 1).flatten(0, 1)
        elif name.endswith(".attn.merge.weight"):
            value = value.unflatten(1, (-1, HEADS)).transpose(1, 2).flatten(1, 2)
        if layer := re.fullmatch(r"kenc\.encoder\.(\d+)\.(\w+)", name):
            number, part = int(layer[1]), layer[2]
            kind = ("linear", "batch_norm")[number % 3] + "." if number < 12 else ""
            converted[f"keypoint_encoder.encoder.{number // 3}.{kind}{part}"] = value
            continue
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        converted[name] = value
    return converted
