"""Feature sets of different sizes as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linglue.types import Features


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
