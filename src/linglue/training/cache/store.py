"""Training pairs on disk: shards of fixed-size arrays that are memory-mapped when training.

A shard is a folder of .npy files and a manifest with their sizes and SHA-256. It is written under another name and
renamed when complete, so that a shard exists whole or not at all. Shard i depends on (seed, i) alone. Features are kept
once per image, however many pairs of the shard the image is in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from linglue.core.atomic import atomic_folder
from linglue.errors import LinGlueError
from linglue.training.cache.subset import cut

SETTINGS = "cache.json"
MANIFEST = "manifest.json"

PER_IMAGE = ("keypoints", "descriptors", "scores", "scales", "oris", "image_size")

Arrays = Mapping[str, NDArray[Any]]


def shard_path(folder: Path, index: int) -> Path:
    """Where shard `index` of the cache in `folder` lives."""
    return folder / f"shard-{index:05d}"


def write_shard(path: Path, arrays: Arrays) -> None:
    """Save the arrays as a shard that appears at once; "source" has one entry for each pair.

    Args:
        path: of `shard_path`.
        arrays: by name, the pairs along the first axis.
    """
    files = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(path) as temporary:
        for name, array in arrays.items():
            file = temporary / f"{name}.npy"
            np.save(file, array)
            files[file.name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        pairs = len(arrays["source"])
        (temporary / MANIFEST).write_text(json.dumps({"pairs": pairs, "files": files}, indent=1))


def check_shard(path: Path, contents: bool = False) -> int:
    """Number of pairs in a shard whose files have the sizes of its manifest and, if asked, the same contents.

    Args:
        path: of `shard_path`.
        contents: also read every file and compare its SHA-256.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{path / MANIFEST}: not a readable manifest; remove the shard and build again") from error
    for name, facts in manifest["files"].items():
        file = path / name
        size = file.stat().st_size if file.is_file() else 0
        if size != facts["bytes"] or (contents and _sha256(file) != facts["sha256"]):
            raise LinGlueError(
                f"{file}: {size} bytes, damaged (expected {facts['bytes']}); remove the shard, build again"
            )
    return int(manifest["pairs"])


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_settings(folder: Path) -> dict[str, Any]:
    """What the cache in `folder` was built with."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{folder / SETTINGS}: not a readable feature cache") from error
    if not isinstance(settings, dict):
        raise LinGlueError(f"{folder / SETTINGS}: not a readable feature cache")
    return settings


class FeatureCache(Sequence[dict[str, Any]]):
    """All pairs of a cache. A pair is a dictionary of numpy views into the files, K keypoints per image:

    image0, image1: keypoints (K, 2) float32 pixels, descriptors (K, D) float16, scores (K,) float32, scales (K,) and
        oris (K,) float32 if the front-end has them, image_size (2,) float32 as (w, h), mask (K,) bool, False where
        there is no keypoint
    matches0, matches1: (K,) int16, an index, UNMATCHABLE or IGNORE (also where mask is False)
    source: index into `sources`, the name of what made the pair
    fundamental: (3, 3) float64, takes points of image0 to their lines in image1; zeros where it is not known

    Example:
        >>> cache = FeatureCache("runs/mine/pairs")  # doctest: +SKIP
        >>> cache.batch([0, 5], keypoints=512)["image0"]["descriptors"].shape  # doctest: +SKIP
        torch.Size([2, 512, 128])
    """

    def __init__(self, folder: str | Path, verify: bool = False) -> None:
        """Sizes of all files are always checked; `verify` reads everything and checks the sums too."""
        self.folder = Path(folder)
        self.settings = read_settings(self.folder)
        self._shards = sorted(p for p in self.folder.glob("shard-*") if p.is_dir())
        if not self._shards:
            raise LinGlueError(f"{self.folder}: holds no complete shard, expected at least 1")
        self._ends = np.cumsum([check_shard(p, verify) for p in self._shards])
        self._arrays: dict[int, Arrays] = {}

    @property
    def kind(self) -> str:
        """Which front-end made the features."""
        return str(self.settings["kind"])

    @property
    def dim(self) -> int:
        """Length of a descriptor."""
        return int(self.settings["dim"])

    @property
    def keypoints(self) -> int:
        """Largest number of keypoints of an image."""
        return int(self.settings["keypoints"])

    @property
    def sources(self) -> list[str]:
        """What made the pairs: the names of the sources, and "unrelated" at the end."""
        return [*self.settings["sources"], "unrelated"]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index = index % len(self)
        shard = int(np.searchsorted(self._ends, index, side="right"))
        row = index - (int(self._ends[shard - 1]) if shard else 0)
        arrays = self._shard(shard)
        pair: dict[str, Any] = {"source": int(arrays["source"][row]), "fundamental": arrays["fundamental"][row]}
        for side in "01":
            image = int(arrays["image" + side][row])
            entry = {name: arrays[name][image] for name in PER_IMAGE if name in arrays}
            entry["mask"] = np.arange(self.keypoints) < arrays["count"][image]
            pair["image" + side] = entry
            pair["matches" + side] = arrays["matches" + side][row]
        return pair

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def batch(self, indices: Sequence[int], keypoints: int | None = None) -> dict[str, Any]:
        """The pairs as tensors with a leading batch axis.

        Args:
            indices: which pairs.
            keypoints: how many of every image's keypoints are kept, the strongest; all of them without.

        Returns:
            The network's input (image0, image1), matches0 and matches1 (int64), source, fundamental (B, 3, 3).
        """
        pairs = [self[int(i)] for i in indices]
        if keypoints is not None and keypoints < self.keypoints:
            pairs = [cut(pair, keypoints) for pair in pairs]

        def stack(arrays: list[Any]) -> torch.Tensor:
            tensor = torch.from_numpy(np.stack(arrays))
            return tensor.float() if tensor.is_floating_point() else tensor

        batch: dict[str, Any] = {"source": torch.tensor([p["source"] for p in pairs])}
        batch["fundamental"] = torch.from_numpy(np.stack([p["fundamental"] for p in pairs]))
        for side in "01":
            image = "image" + side
            names = [name for name in pairs[0][image] if name != "scores"]
            batch[image] = {name: stack([p[image][name] for p in pairs]) for name in names}
            batch["matches" + side] = stack([p["matches" + side] for p in pairs]).long()
        return batch

    def _shard(self, shard: int) -> Arrays:
        if shard not in self._arrays:
            files = sorted(self._shards[shard].glob("*.npy"))
            self._arrays[shard] = {f.stem: np.load(f, mmap_mode="r") for f in files}
        return self._arrays[shard]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of pairs of each source."""
        every = np.concatenate([self._shard(k)["source"] for k in range(len(self._shards))])
        return {name: int((every == k).sum()) for k, name in enumerate(self.sources)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}  # loader processes map the files for themselves
