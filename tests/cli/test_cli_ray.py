"""`--engine ray` on a Ray of this machine's own: the same features, matches and poses as without."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from evaluation.tasks.test_homography import write_data_set
from linglue.core.ray_engine import Ray
from linglue.features.sift import Sift
from linglue.sfm.workspace import Workspace
from linglue.training.cache.build import CacheConfig, build_cache
from linglue.training.cache.store import FeatureCache
from linglue.training.sources.homography import HomographyConfig, HomographySource
from rendered import render, write_images
from rendered_map import KEYPOINTS, write_map

VIEWS = render(5)
ALONE = {"RAY_ADDRESS": ""}  # joins no other cluster
RAY = ("--engine", "ray", "--workers", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, VIEWS[:3])
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--address", "127.0.0.1:6379"), "--address is given, expected only with --engine ray"),
        (("--ship-images",), "--ship-images is given, expected only with --engine ray"),
        (("--engine", "ray", "--address", "127.0.0.1:9"), "--address is '127.0.0.1:9', expected HOST:PORT of a Ray"),
        (("--engine", "ray", "--workers", 0), "--workers is 0, expected at least 1"),
    ],
)
def test_bad_options_are_one_line(run, images, tmp_path, options, message):
    if "127.0.0.1:9" in options:
        pytest.importorskip("ray", reason="Ray is not installed: pip install linglue[ray]")
    outcome = run("extract", images, "-o", tmp_path / "work", *options)
    assert outcome.code == 1
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "work").exists()


def test_without_ray_it_says_how_to_get_it(run, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = run("extract", images, "-o", tmp_path / "work", "--engine", "ray")
    assert outcome.code == 1
    assert "--engine ray needs ray, which is not installed: pip install linglue[ray]" in outcome.err


@pytest.fixture(scope="module")
def ray(ray_here):
    import ray

    yield ray
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.slow
def test_features_matches_and_poses_are_those_of_the_pool(run, ray, images, tmp_path):
    for name, engine, ship in (("pool", ("--workers", 1), ()), ("ray", RAY, ("--ship-images",))):
        work = tmp_path / name
        assert run("extract", images, "-o", work, "--max-keypoints", 200, *engine, *ship, "--json").code == 0
        assert run("pairs", work).code == 0
        assert run("match-pairs", work, *engine).code == 0
    works = [Workspace(tmp_path / name) for name in ("pool", "ray")]
    with works[0].features() as pool, works[1].features() as there, works[0].matches() as m0, works[1].matches() as m1:
        assert pool.made_from() == there.made_from()
        for name in pool.names():
            assert np.array_equal(pool.get(name).descriptors, there.get(name).descriptors)
        assert len(m0.rows()) == 3
        for pair in m0.rows():
            assert all(np.array_equal(a, b) for a, b in zip(m0.get(*pair), m1.get(*pair), strict=True))

    pytest.importorskip("pycolmap")
    write_map(tmp_path / "map", VIEWS[:4])
    write_images(tmp_path / "queries", VIEWS[4:])
    found = []
    for number, where in enumerate(((), (*RAY, "--ship-images"))):
        poses = tmp_path / f"{number}.txt"
        options = ("--map", tmp_path / "map", "-o", poses, "--max-keypoints", KEYPOINTS, "--json", *where)
        outcome = run("localize", tmp_path / "queries", *options)
        assert json.loads(outcome.out)["localized"] == 1, outcome.err
        found.append(poses.read_text())
    assert found[0] == found[1]


@pytest.mark.ray
@pytest.mark.slow
def test_a_reconstruction_whose_driver_is_killed_resumes_to_the_model_of_the_pool(run, ray, tmp_path):
    pytest.importorskip("pycolmap")
    write_images(tmp_path / "images", VIEWS)
    options = ("--features", "sift", "--max-keypoints", "300")
    killed = tmp_path / "ray"
    command = ["reconstruct", tmp_path / "images", "-o", killed, *options, *RAY, "--ship-images"]
    driver = subprocess.Popen([sys.executable, "-m", "linglue", *map(str, command)], env={**os.environ, **ALONE})
    deadline = time.monotonic() + 180
    while not written(killed):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    assert not (killed / "summary.json").exists()
    assert run(*command).code == 0
    assert run("reconstruct", tmp_path / "images", "-o", tmp_path / "pool", *options, "--workers", 1).code == 0
    for file in ("cameras.bin", "images.bin", "points3D.bin"):
        assert (killed / "model" / file).read_bytes() == (tmp_path / "pool" / "model" / file).read_bytes()


def written(folder):
    """Whether the features of an image are in a work folder."""
    file = folder / "features.db"
    if not file.is_file():
        return False
    with Workspace(folder).features() as features:
        return bool(features.names())


@pytest.mark.ray
@pytest.mark.slow
def test_an_evaluation_gives_the_same_numbers(run, ray, tmp_path):
    write_data_set(tmp_path / "data")
    found = []
    for name, engine in (("pool", ("--workers", 1)), ("ray", RAY)):
        options = ("--methods", "sift:mnn", "sift:linglue", "--max-keypoints", 200, "--estimators", "poselib", "--json")
        outcome = run("eval", "homography", tmp_path / "data", *options, "-o", tmp_path / name, *engine)
        pairs = json.loads(outcome.out)["pairs"]
        found.append([{key: value for key, value in row.items() if key != "seconds"} for row in pairs])
    assert found[0] == found[1] and len(found[0]) == 8


@pytest.mark.ray
@pytest.mark.slow
def test_training_pairs_are_those_of_one_process(ray, tmp_path):
    images = [view.image for view in VIEWS[:2]]
    sources = {"homography": (HomographySource(HomographyConfig(longer_side=(320, 400))), 1.0)}
    config = CacheConfig(pairs=4, shard_size=2, keypoints=100, min_matches=5)
    for name, engine in (("pool", None), ("ray", Ray(workers=1))):
        build_cache(tmp_path / name, sources, images, Sift(), config, engine, progress=False)
    for pair, other in zip(FeatureCache(tmp_path / "pool"), FeatureCache(tmp_path / "ray"), strict=True):
        assert np.array_equal(pair["matches0"], other["matches0"])
        assert np.array_equal(pair["image0"]["descriptors"], other["image0"]["descriptors"])
