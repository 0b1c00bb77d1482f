"""What benchmarks/speed.py runs, and on which features: LinGlue, its peers, and the floors of exact nearest neighbours.

Each method gets the features it was made for: linpoint for linglue (the default: the learned consensus, and the network
where that is not sure), linglue-full (the network for every pair), linglue-fast (for none) and the nearest neighbours
alone, sift for linglue-geo and linglue-geo-full (another network), adalam and colmap-sift, aliked for LightGlue,
superpoint for SuperGlue. FAISS takes part where it is installed; gemm and gemm-onednn are all inner products and no
more, by torch's own product and by oneDNN's.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from linglue.errors import LinGlueError
from linglue.evaluation.peers import find_peer_file
from linglue.features.registry import make_extractor
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.matching.nearest import BLOCK_COLUMNS, BLOCK_ROWS, linear, nearest_k
from linglue.types import Features, ImageSize

SIZE = ImageSize(1600, 1200)
DIMS = {"linpoint": 64, "sift": 128, "aliked": 128, "superpoint": 256}
FEATURES = {
    "linglue": "linpoint",
    "linglue-full": "linpoint",
    "linglue-fast": "linpoint",
    "linglue-geo": "sift",
    "linglue-geo-full": "sift",
    "nearest": "linpoint",
    "gemm": "linpoint",
    "gemm-onednn": "linpoint",
    "matmul-topk": "linpoint",
    "faiss": "linpoint",
    "adalam": "sift",
    "colmap-sift": "sift",
    "lightglue": "aliked",
    "lightglue-full": "aliked",
    "superglue-10": "superpoint",
    "superglue": "superpoint",
}
METHODS = tuple(FEATURES)
NEIGHBOURS = 5  # of each descriptor, as many as the learned consensus asks for
Run = Callable[[Features, Features], Any]
Pairs = Callable[[str, int], tuple[Features, Features] | None]


def random_pair(kind: str, count: int) -> tuple[Features, Features]:
    """Two images that share half of their keypoints, with noisy descriptors and a similarity between them."""
    rng = np.random.default_rng(count)
    half, dim = count // 2, DIMS[kind]
    points0, points1 = rng.uniform((0, 0), SIZE, (2, count, 2))
    centre, angle = np.array(SIZE) / 2, 0.2
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    points1[:half] = (points0[:half] - centre) @ rotation.T * 0.8 + centre + rng.normal(0, 0.7, (half, 2))
    x0, x1 = np.abs(rng.normal(size=(2, count, dim)))
    x1[:half] = np.abs(x0[:half] + rng.uniform(0.1, 0.6, (half, 1)) * rng.normal(size=(half, dim)))
    oris0, oris1 = rng.uniform(0, 2 * np.pi, (2, count))
    oris1[:half] = (oris0[:half] + angle + rng.normal(0, 0.1, half)) % (2 * np.pi)
    scales0, scales1 = rng.lognormal(1.5, 0.6, (2, count))
    scales1[:half] = 0.8 * scales0[:half] * rng.lognormal(0, 0.1, half)
    order = rng.permutation(count)
    return (
        _features(kind, points0, x0, scales0, oris0),
        _features(kind, points1[order], x1[order], scales1[order], oris1[order]),
    )


def _features(kind: str, points: np.ndarray, x: np.ndarray, scales: np.ndarray, oris: np.ndarray) -> Features:
    shape = {"scales": scales, "oris": oris} if kind == "sift" else {}
    return Features(
        keypoints=points.clip(0, np.array(SIZE) - 1),
        descriptors=x / np.linalg.norm(x, axis=1, keepdims=True),
        scores=np.linspace(1, 0.1, len(points)),
        image_size=SIZE,
        kind=kind,
        **shape,
    )


def real_pairs(images: list[str], most: int) -> Pairs:
    """Features of two images, or None where an image has not so many keypoints, or the front-end no weights.

    Args:
        images: two files.
        most: keypoints that are ever asked for; they are found once.
    """

    @cache
    def found(kind: str) -> list[Features] | None:
        try:
            weights = find_peer_file("superpoint_v1.pth", "superpoint") if kind == "superpoint" else None
            extractor = make_extractor(kind, weights)
            return [extractor.extract(image, max_keypoints=most) for image in images]
        except LinGlueError as error:
            print(f"{kind}: {error}", file=sys.stderr)
            return None

    def pair(kind: str, count: int) -> tuple[Features, Features] | None:
        both = found(kind)
        if both is None or min(len(features) for features in both) < count:
            return None
        return both[0].strongest(count), both[1].strongest(count)

    return pair


def make_run(method: str) -> Run:
    """What matches two feature sets by `method`."""
    if method == "nearest":
        return lambda a, b: nearest_k(torch.from_numpy(a.descriptors), torch.from_numpy(b.descriptors), NEIGHBOURS)
    if method == "matmul-topk":
        return _plain_nearest
    if method in ("gemm", "gemm-onednn"):
        return _products(torch.nn.functional.linear if method == "gemm" else linear)
    if method == "faiss":
        return _faiss_nearest()
    name = "lightglue" if method == "lightglue-full" else method.replace("-geo", "")
    matcher: PairMatcher = MatcherConfig(name, FEATURES[method]).build()
    if method == "lightglue-full":  # every layer for every keypoint
        conf = matcher.net.conf  # type: ignore[attr-defined]
        conf.depth_confidence = conf.width_confidence = -1
    return matcher.match


def _plain_nearest(a: Features, b: Features) -> tuple[Any, Any]:
    """The nearest both ways without blocks: the whole matrix, then topk."""
    similarity = torch.from_numpy(a.descriptors) @ torch.from_numpy(b.descriptors).T
    return similarity.topk(NEIGHBOURS, dim=1), similarity.topk(NEIGHBOURS, dim=0)


def _products(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Run:
    """The floor of exact nearest neighbours: all inner products, block by block, of which nothing is kept."""

    def run(a: Features, b: Features) -> None:
        x, y = torch.from_numpy(a.descriptors), torch.from_numpy(b.descriptors)
        for left in x.split(BLOCK_ROWS):
            for right in y.split(BLOCK_COLUMNS):
                product(left, right)

    return run


def _faiss_nearest() -> Run:
    """The same by FAISS's exhaustive search."""
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        raise LinGlueError("faiss is not installed") from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return lambda a, b: [faiss.knn(x.descriptors, y.descriptors, NEIGHBOURS) for x, y in ((a, b), (b, a))]
