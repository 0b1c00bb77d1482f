"""Matcher: photographs or features in, matches out. Front-end → network → nearest neighbours → filter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linglue.core.stopwatch import Stopwatch
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS, make_extractor
from linglue.features.base import Extractor
from linglue.io.images import Image, ImageSource, Mask
from linglue.matching.distance import View
from linglue.network.batch import collate
from linglue.network.linglue import LinGlue, views
from linglue.network.weights import find_weights, load_network, packaged_weights
from linglue.types import Features, Matches

MAX_KEYPOINTS = 4096  # defaults of extraction, here and on the command line
RESIZE = 1600

PAIR_EVIDENCE = 20.0  # summed match scores at which a pair is more likely right than not


class Matcher:
    """A front-end with the network made for it."""

    def __init__(self, extractor: Extractor | None, network: LinGlue, kind: str, device: str = "cpu") -> None:
        """`kind` names the features the network was made for. Without an extractor only `Features` can be matched."""
        self.extractor = extractor
        self.network = network.to(device).eval()
        self.kind = kind
        self.device = torch.device(device)

    @classmethod
    def from_pretrained(
        cls,
        name: str = "sift",
        extractor_weights: str | Path | None = None,
        weights: str | Path | None = None,
        device: str | None = None,
    ) -> Matcher:
        """Front-end `name` with the network that comes with the package, or with your own from the file `weights`.

        `extractor_weights`: the front-end's own file where it needs one (superpoint, aliked, disk). Nothing is
        downloaded. `device` defaults to "cuda" where there is one.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        extractor = make_extractor(name, extractor_weights, device)
        network, info = load_network(weights or find_weights(extractor.kind), device)
        if info.kind != extractor.kind:
            raise LinGlueError(
                f"{weights}: network was made for {info.kind!r} features, the front-end gives {extractor.kind!r}"
            )
        return cls(extractor, network, info.kind, device)

    def extract(
        self,
        source: ImageSource,
        max_keypoints: int = MAX_KEYPOINTS,
        resize: int | None = RESIZE,
        mask: Mask | None = None,
        tile: int | None = None,
    ) -> Features:
        """Features of an image (path, numpy or torch) in pixels of the original; see `Extractor.extract`."""
        if self.extractor is None:
            raise LinGlueError(f"this matcher has no front-end: it matches ready {self.kind!r} Features only")
        return self.extractor.extract(source, max_keypoints, resize, mask, tile)

    def match(
        self,
        image0: ImageSource | Features,
        image1: ImageSource | Features,
        max_keypoints: int = MAX_KEYPOINTS,
        resize: int | None = RESIZE,
        tile: int | None = None,
    ) -> Matches:
        """Matches between two images, or between features that were extracted before."""
        watch = Stopwatch(self.device)
        sources = (image0, image1)
        with watch.stage("extract"):
            features = [
                s if isinstance(s, Features) else self.extract(s, max_keypoints, resize, tile=tile) for s in sources
            ]
        return self._match_batch([(features[0], features[1])], watch, *(_drawable(s) for s in sources))[0]

    def match_batch(self, pairs: Sequence[tuple[Features, Features]], batch_size: int | None = None) -> list[Matches]:
        """Matches of many pairs with any numbers of keypoints; the same as matching one by one.

        On a CPU pairs run one after the other, which is as fast and gives bit-identical results. On a GPU `batch_size`
        pairs (default 8) are padded and run together; padding never enters the arithmetic, sums may round differently.
        """
        if batch_size is None:
            batch_size = 1 if self.device.type == "cpu" else 8
        if batch_size < 1:
            raise LinGlueError(f"batch_size is {batch_size}, expected at least 1")
        results: list[Matches] = []
        for start in range(0, len(pairs), batch_size):
            results += self._match_batch(pairs[start : start + batch_size], Stopwatch(self.device))
        return results

    @torch.inference_mode()
    def _match_batch(
        self,
        pairs: Sequence[tuple[Features, Features]],
        watch: Stopwatch,
        image0: Path | Image | None = None,
        image1: Path | Image | None = None,
    ) -> list[Matches]:
        for pair in pairs:
            for features in pair:
                self._check(features)
        if len(pairs) == 1:  # no padding, no mask
            entry0, entry1 = (features.tensors(self.device) for features in pairs[0])
        else:
            entry0, entry1 = (collate(side, self.device) for side in zip(*pairs, strict=True))
        with watch.stage("network"):
            encoded = self.network.encode(entry0, entry1)
        results = []
        for b, (view0, view1, valid0, valid1) in enumerate(views(entry0, entry1)):
            x0, x1 = encoded.descriptors0[b][valid0], encoded.descriptors1[b][valid1]  # (N, C), (M, C)
            results.append(self._decode(*pairs[b], view0, view1, x0, x1, watch, image0, image1))
        return results

    def _decode(
        self,
        features0: Features,
        features1: Features,
        view0: View,
        view1: View,
        x0: Tensor,
        x1: Tensor,
        watch: Stopwatch,
        image0: Path | Image | None,
        image1: Path | Image | None,
    ) -> Matches:
        pairs, scores = self.network.match(view0, view1, x0, x1, watch)
        indices = pairs.cpu().numpy().astype(np.int64)
        values = scores.cpu().numpy().astype(np.float32)
        return Matches(
            points0=features0.keypoints[indices[:, 0]],
            points1=features1.keypoints[indices[:, 1]],
            indices=indices,
            scores=values,
            features0=features0,
            features1=features1,
            pair_score=pair_score(values),
            timing=dict(watch.seconds),
            image0=image0,
            image1=image1,
        )

    def _check(self, features: Features) -> None:
        if features.kind != self.kind:
            raise LinGlueError(f"features are of kind {features.kind!r}, this network was made for {self.kind!r}")
        if features.dim != self.network.config.input_dim:
            raise LinGlueError(
                f"descriptors have {features.dim} entries, this network takes {self.network.config.input_dim}"
            )


def pair_score(scores: np.ndarray) -> float:
    """In [0, 1]: how sure we are that two images with these match scores (K,) show the same thing at all."""
    return float(1 - np.exp2(-scores.sum(dtype=np.float64) / PAIR_EVIDENCE))


def _drawable(source: ImageSource | Features) -> Path | Image | None:
    """What can be opened again for drawing."""
    if isinstance(source, str | Path):
        return Path(source)
    if isinstance(source, Features):
        return None
    from linglue.io.images import as_image

    return as_image(source)


def presets() -> list[dict[str, object]]:
    """Names, descriptor sizes, licences and networks of what `Matcher.from_pretrained` can load."""
    from linglue.network.weights import read_info

    found: list[dict[str, object]] = []
    for name, front_end in FRONT_ENDS.items():
        path = packaged_weights(name)
        if path.is_file():
            info = read_info(path)
            found.append(
                {
                    "name": name,
                    "dim": info.config.input_dim,
                    "network": info.preset,
                    "network_dim": info.config.dim,
                    "training": info.training,
                    "network_licence": info.licence,
                    "features_licence": front_end.licence,
                    "needs_extractor_weights": front_end.needs_weights,
                    "weights_source": front_end.weights_source,
                }
            )
    return found
