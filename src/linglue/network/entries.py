"""Entries: images of a batch as LightGlue's dictionaries, padded or one by one, and matches as it gives them.

An entry holds one image of every pair of a batch: keypoints (B, N, 2), descriptors (B, N, D), image_size (B, 2),
optionally scales (B, N), oris (B, N), and mask (B, N), which is False for padding; single images have no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linglue.errors import LinGlueError
from linglue.matching.neighborhood import Keypoints

Entry = Mapping[str, Tensor]  # a batch of images, or one image without the axis B


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
    return Keypoints(
        image["keypoints"], image["image_size"].to(image["keypoints"]), image.get("scales"), image.get("oris")
    )


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


def centred(seen: Keypoints) -> Tensor:
    """(N, 2) places of keypoints from the centre of the image, in halves of its longer side."""
    return (seen.points - (seen.size - 1) / 2) / (seen.size.max() / 2)
