"""Features of a folder: taken once, again only where something changed."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.features.sift import Sift
from linglue.sfm.extract import ExtractConfig, extract_images
from linglue.sfm.scan import ScanConfig, scan_images
from linglue.sfm.store import FeatureStore

CONFIG = ExtractConfig(max_keypoints=100, resize=200)


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, image in (("a.png", data.coffee()), ("b c.png", data.astronaut()), ("d.png", data.rocket())):
        cv2.imwrite(str(folder / name), cv2.resize(image, (240, 160)))
    return folder


def run(images, store, config=CONFIG, masks=None, engine=None):
    return extract_images(scan_images(images, store, ScanConfig(masks)).images, config, store, engine)


def test_once_and_then_kept(images, tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        first = run(images, store)
        assert (first.made, first.kept, len(first.images)) == (3, 0, 3)
        assert first.keypoints == sum(len(store.get(name)) for name in store.names())
        again = run(images, store)
        assert (again.made, again.kept, again.keypoints) == (0, 3, first.keypoints)


def test_workers_change_nothing(images, tmp_path):
    with FeatureStore(tmp_path / "1.db") as one, FeatureStore(tmp_path / "2.db") as two:
        run(images, one)
        run(images, two, engine=Pool(2))
        assert one.made_from() == two.made_from()
        for name in one.names():
            np.testing.assert_array_equal(one.get(name).keypoints, two.get(name).keypoints)
            np.testing.assert_array_equal(one.get(name).descriptors, two.get(name).descriptors)


def test_only_the_changed_image_is_done_again(images, tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        run(images, store)
        before = store.get("a.png").keypoints
        cv2.imwrite(str(images / "a.png"), cv2.resize(data.chelsea(), (240, 160)))
        result = run(images, store)
        assert (result.made, result.kept) == (1, 2)
        assert not np.array_equal(store.get("a.png").keypoints, before)


@pytest.mark.parametrize("change", [{"max_keypoints": 50}, {"resize": 150}, {"tile": 288}])
def test_changed_settings_do_all_again(images, tmp_path, change):
    with FeatureStore(tmp_path / "f.db") as store:
        run(images, store)
        assert run(images, store, replace(CONFIG, **change)).made == 3


def test_masks_keep_keypoints_out_and_are_noticed(images, tmp_path):
    masks = tmp_path / "masks"
    masks.mkdir()
    mask = np.zeros((160, 240), np.uint8)
    mask[:, :120] = 255
    cv2.imwrite(str(masks / "a.png.png"), mask)
    with FeatureStore(tmp_path / "f.db") as store:
        run(images, store)
        assert store.get("a.png").keypoints[:, 0].max() > 130
        assert run(images, store, masks=masks).made == 1
        assert store.get("a.png").keypoints[:, 0].max() < 120
        cv2.imwrite(str(masks / "a.png.png"), mask[:, :50])
        (problem,) = run(images, store, masks=masks).problems
        assert "mask is 50x160 pixels, expected the size of" in problem


def test_each_useless_image_is_one_line_and_the_rest_is_done(images, tmp_path):
    (images / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    cv2.imwrite(str(images / "black.png"), np.zeros((160, 240), np.uint8))
    with FeatureStore(tmp_path / "f.db") as store:
        for _ in range(2):  # a second run says the same
            result = run(images, store)
            assert [p.name for p in result.images] == ["a.png", "b c.png", "d.png"]
            assert len(result.problems) == 2
            assert result.problems[0] == "black.png: no linpoint keypoint, left out"
            assert result.problems[1].startswith("broken.jpg: left out (not an image that can be decoded")
        assert result.made == 0


def test_imported_features_are_used_as_they_are_where_the_size_fits(images, tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        found = Sift().extract(data.coffee()[:160, :240], 50)
        for name in ("a.png", "d.png"):
            store.put(name, name, found, imported=True)
        cv2.imwrite(str(images / "d.png"), data.rocket()[:100, :100])
        result = run(images, store)
        assert [image.name for image in result.images] == ["a.png"] and (result.made, result.kept) == (0, 1)
        assert store.made_from() == {"a.png": "a.png", "d.png": "d.png"}
        assert result.problems == [
            "b c.png: no imported features, left out",
            "d.png: left out (its imported features are of 240x160 pixels, it has 100x100)",
        ]


def test_an_impossible_front_end_is_said_before_any_work(images, tmp_path):
    with FeatureStore(tmp_path / "f.db") as store, pytest.raises(LinGlueError, match="needs a weights file"):
        run(images, store, ExtractConfig(features="superpoint"))
