"""The feature cache: same result however it is built, whole shards only, damage noticed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest
import torch

from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.features.sift import Sift
from linglue.training.cache.build import CacheConfig, build_cache, extractor_sha256
from linglue.training.cache.store import FeatureCache
from linglue.training.images.image_set import ImageSet
from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE
from linglue.training.sources.homography import HomographyConfig, HomographySource

SOURCES = {"homography": (HomographySource(HomographyConfig(longer_side=(320, 400))), 1.0)}
CONFIG = CacheConfig(pairs=6, shard_size=3, keypoints=200, min_matches=10, unrelated=0.3, seed=5)


def build(folder, images, config=CONFIG, engine=None):
    return build_cache(folder, SOURCES, images, Sift(), config, engine=engine, progress=False)


def digest(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def built(images, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    build(folder, images)
    return folder


def test_contents(built):
    cache = FeatureCache(built, verify=True)
    assert len(cache) == 6 and cache.kind == "sift" and cache.dim == 128
    assert cache.sources == ["homography", "unrelated"] and sum(cache.counts.values()) == 6
    for pair in cache:
        matches0, matches1 = pair["matches0"], pair["matches1"]
        mask0 = pair["image0"]["mask"]
        assert (matches0[~mask0] == IGNORE).all()
        if cache.sources[pair["source"]] == "unrelated":
            assert (matches0[mask0] == UNMATCHABLE).all()
            continue
        matched = np.flatnonzero(matches0 >= 0)
        assert len(matched) >= CONFIG.min_matches
        np.testing.assert_array_equal(matches1[matches0[matched]], matched)
        lengths = np.linalg.norm(pair["image0"]["descriptors"][mask0].astype(np.float32), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=2e-3)
        width, height = pair["image0"]["image_size"]
        assert (pair["image0"]["keypoints"][mask0] <= [width, height]).all()


def test_descriptors_of_matches_are_similar(built):
    """Labels belong to the features beside them: partners look more alike than random keypoints do."""
    closer = []
    for pair in FeatureCache(built):
        i = np.flatnonzero(pair["matches0"] >= 0)
        if len(i):
            d0 = pair["image0"]["descriptors"][i].astype(np.float32)
            d1 = pair["image1"]["descriptors"].astype(np.float32)
            j = pair["matches0"][i]
            closer.append((d0 * d1[j]).sum(axis=1).mean() - (d0 * d1[np.roll(j, 1)]).sum(axis=1).mean())
    assert min(closer) > 0.05 and np.mean(closer) > 0.1


def test_batch(built):
    cache = FeatureCache(built)
    batch = cache.batch([0, 4, 2])
    assert batch["image0"]["descriptors"].shape == (3, 200, 128)
    assert batch["image1"]["keypoints"].dtype == batch["image1"]["descriptors"].dtype == torch.float32
    assert batch["matches0"].dtype == torch.int64 and batch["image0"]["mask"].dtype == torch.bool
    np.testing.assert_array_equal(batch["matches0"][1].numpy(), cache[4]["matches0"])


def test_unrelated_share(images, tmp_path):
    config = replace(CONFIG, pairs=24, shard_size=24, unrelated=0.5, min_matches=5)
    counts = build(tmp_path, images * 20, config).counts  # 160 images, so that most pairs have none in common
    assert 5 <= counts["unrelated"] <= 14


def test_resume_and_workers_give_the_same(built, images, tmp_path):
    folder = tmp_path / "two"
    build(folder, images, replace(CONFIG, pairs=3))
    assert len(FeatureCache(folder)) == 3
    before = (folder / "shard-00000" / "keypoints.npy").stat().st_mtime_ns
    build(folder, images, engine=Pool(2))
    assert (folder / "shard-00000" / "keypoints.npy").stat().st_mtime_ns == before
    assert digest(folder) == digest(built)


class _OneScene:
    """A real scene in small: every draw shows the same two images."""

    settings: ClassVar = {"scene": 1}

    def __init__(self, images) -> None:
        self.group = SOURCES["homography"][0].sample(images, np.random.default_rng(3))

    def sample(self, images, rng):
        return self.group


class _Counting(Sift):
    count = 0

    def detect(self, image, max_keypoints, mask):
        self.count += 1
        return super().detect(image, max_keypoints, mask)


def test_an_image_of_many_pairs_is_extracted_once(images, tmp_path):
    extractor = _Counting()
    config = replace(CONFIG, unrelated=0)
    cache = build_cache(tmp_path, {"scene": (_OneScene(images), 1.0)}, images, extractor, config, progress=False)
    assert len(cache) == 6 and extractor.count == 2
    assert np.load(tmp_path / "shard-00000" / "keypoints.npy").shape == (2, 200, 2)  # and kept once


def test_all_pairs_of_a_group_share_its_images(images, tmp_path):
    extractor = _Counting()
    config = replace(CONFIG, pairs=12, shard_size=12, unrelated=0, min_matches=5)
    sources = {"homography": (HomographySource(HomographyConfig(views=4, longer_side=(320, 400))), 1.0)}
    cache = build_cache(tmp_path, sources, images, extractor, config, progress=False)
    assert len(cache) == 12 and extractor.count < 16  # two images each would be 24
    for pair in cache:
        matched = np.flatnonzero(pair["matches0"] >= 0)
        assert len(matched) >= 5
        np.testing.assert_array_equal(pair["matches1"][pair["matches0"][matched]], matched)


def test_shares_are_of_pairs_however_many_a_group_gives(images, tmp_path):
    """A source that gives six pairs at a time is asked less often than one that gives a single pair."""
    many, one = (HomographySource(HomographyConfig(views=views, longer_side=(320, 400))) for views in (4, 2))
    config = replace(CONFIG, pairs=40, shard_size=40, unrelated=0, min_matches=5)
    cache = build_cache(tmp_path, {"many": (many, 0.5), "one": (one, 0.5)}, images, _Counting(), config, progress=False)
    assert cache.counts["many"] == pytest.approx(20, abs=6)


def test_a_batch_of_fewer_keypoints(built):
    cache = FeatureCache(built)
    batch = cache.batch([0, 1], keypoints=80)
    assert batch["image0"]["descriptors"].shape == (2, 80, 128) and batch["matches1"].shape == (2, 80)
    assert int(batch["matches0"].max()) < 80 and "scores" not in batch["image0"]
    for matches0, matches1 in zip(batch["matches0"], batch["matches1"], strict=True):
        matched = (matches0 >= 0).nonzero()[:, 0]
        torch.testing.assert_close(matches1[matches0[matched]], matched)


def test_images_with_other_contents_are_another_cache(tmp_path, images):
    """Same names, same sizes: only the contents tell."""
    names = [tmp_path / f"{number}.png" for number in range(3)]
    for name, image in zip(names, images, strict=False):
        cv2.imwrite(str(name), image)
    config = replace(CONFIG, pairs=3, unrelated=0, min_matches=5)
    build(tmp_path / "cache", ImageSet(names), config)
    build(tmp_path / "cache", ImageSet(names), config)
    cv2.imwrite(str(names[1]), 255 - images[1])
    with pytest.raises(LinGlueError, match="images"):
        build(tmp_path / "cache", ImageSet(names), config)


def test_other_weights_are_another_front_end():
    def with_weights(seed: int) -> Sift:
        extractor = Sift()
        torch.manual_seed(seed)
        extractor.__dict__["net"] = torch.nn.Linear(2, 2)
        return extractor

    assert extractor_sha256(with_weights(0)) == extractor_sha256(with_weights(0))
    assert extractor_sha256(with_weights(0)) != extractor_sha256(with_weights(1))


def test_other_settings_are_refused(built, images):
    with pytest.raises(LinGlueError, match="keypoints"):
        build(built, images, replace(CONFIG, keypoints=100))
    with pytest.raises(LinGlueError, match="images"):
        build(built, images[1:])


def test_damage_is_noticed(images, tmp_path):
    config = replace(CONFIG, pairs=3)
    build(tmp_path, images, config)
    file = tmp_path / "shard-00000" / "descriptors.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    FeatureCache(tmp_path)
    with pytest.raises(LinGlueError, match="descriptors"):
        FeatureCache(tmp_path, verify=True)
    file.write_bytes(data[:-10])
    with pytest.raises(LinGlueError, match="descriptors"):
        FeatureCache(tmp_path)


def test_kill_leaves_whole_shards(built, images, tmp_path):
    """Killed at a random moment, resumed, and the result is the same."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import skimage.data
from training import conftest
from training.cache import test_cache
from linglue.io.images import as_image
images = [as_image(getattr(skimage.data, n)()) for n in conftest.NAMES]
test_cache.build({str(tmp_path / "c")!r}, images)
"""
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.time() + 60
    while not (tmp_path / "c" / "shard-00000").exists() and time.time() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(FeatureCache(tmp_path / "c", verify=True)) % 3 == 0
    build(tmp_path / "c", images)
    assert digest(tmp_path / "c").items() >= digest(built).items()


def test_hopeless_image(tmp_path):
    blank = [np.full((300, 300, 3), 100, dtype=np.uint8)] * 2
    with pytest.raises(LinGlueError, match="matches"):
        build(tmp_path, blank, replace(CONFIG, unrelated=0))
