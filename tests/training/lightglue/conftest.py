"""LightGlue with random weights, and a few pairs whose descriptors really correspond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from linglue.training.cache.store import SETTINGS, FeatureCache, shard_path, write_shard
from linglue.training.sources.labels import LIGHTGLUE_FILE

KEYPOINTS = 48


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with LightGlue's file."""
    feature = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    torch.save(feature.LightGlue(None, input_dim=128).state_dict(), folder / LIGHTGLUE_FILE)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    """Eight pairs of one image each, and the same moved, in another order and with noise."""
    return FeatureCache(write_cache(tmp_path_factory.mktemp("cache"), "aliked"))


def write_cache(folder: Path, kind: str, dim: int = 128) -> Path:
    rng, pairs = np.random.default_rng(0), 8
    points = rng.uniform(10, 90, (pairs, KEYPOINTS, 2))
    descriptors = rng.normal(size=(pairs, KEYPOINTS, dim))
    order = np.stack([rng.permutation(KEYPOINTS) for _ in range(pairs)])  # what image 1 has where
    row = np.arange(pairs)[:, None]
    noisy = descriptors[row, order] + 0.5 * rng.normal(size=descriptors.shape)
    both = np.concatenate([descriptors, noisy])
    arrays = {
        "keypoints": np.concatenate([points, points[row, order] + 5]).astype(np.float32),
        "descriptors": (both / np.linalg.norm(both, axis=2, keepdims=True)).astype(np.float16),
        "scores": rng.uniform(size=(2 * pairs, KEYPOINTS)).astype(np.float32),
        "image_size": np.full((2 * pairs, 2), 100, np.float32),
        "count": np.full(2 * pairs, KEYPOINTS),
        "image0": np.arange(pairs),
        "image1": np.arange(pairs) + pairs,
        "matches0": np.argsort(order, axis=1).astype(np.int16),
        "matches1": order.astype(np.int16),
        "source": np.array([0] * (pairs - 1) + [1]),  # the last counts as unrelated
        "fundamental": np.zeros((pairs, 3, 3)),
    }
    write_shard(shard_path(folder, 0), arrays)
    settings = {"kind": kind, "dim": dim, "keypoints": KEYPOINTS, "sources": ["teacher"]}
    (folder / SETTINGS).write_text(json.dumps(settings))
    return folder
