"""What is found in a folder of photographs."""

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue.errors import LinGlueError
from linglue.sfm.scan import ScanConfig, scan_images
from linglue.sfm.store import FeatureStore


def write(path, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def store(tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        yield store


def test_names_are_paths_below_the_folder(tmp_path, store):
    names = ["b.png", "a b.jpg", "sub/a.jpg", "sub/a.png", "sub/ü.JPG"]
    for i, name in enumerate(names):
        write(tmp_path / "in" / name, i)
    write(tmp_path / "in" / ".hidden" / "x.jpg", 9)
    found = scan_images(tmp_path / "in", store)
    assert [p.name for p in found.images] == sorted(names)
    assert found.problems == found.notes == []


def test_each_problem_is_a_line(tmp_path, store):
    folder = tmp_path / "in"
    write(folder / "a.png")
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())
    (folder / "notes.txt").write_text("remember the milk")
    exif = Image.Exif()
    exif[274] = 6
    write(folder / "turned.jpg", 1, exif=exif)
    found = scan_images(folder, store)
    assert [p.name for p in found.images] == ["a.png", "turned.jpg"]
    assert found.problems == ["b.png: the same image as a.png, left out", "notes.txt: not an image, left out"]
    assert found.notes == ["turned.jpg: rotated upright as its EXIF says"]


def test_the_work_folder_may_lie_among_the_photographs(tmp_path, store):
    write(tmp_path / "in" / "a.png")
    write(tmp_path / "in" / "work" / "pictures" / "model.png", 1)
    assert [p.name for p in scan_images(tmp_path / "in", store, besides=[tmp_path / "in" / "work"]).images] == ["a.png"]


def test_masks_by_colmaps_name_or_their_own(tmp_path, store):
    for i, name in enumerate(["a.jpg", "b.jpg", "sub/c.jpg"]):
        write(tmp_path / "in" / name, i)
    cv2.imwrite(str(write(tmp_path / "masks" / "a.jpg.png")), np.ones((40, 60)))
    cv2.imwrite(str(write(tmp_path / "masks" / "sub" / "c.png")), np.ones((40, 60)))
    masks = {
        p.name: p.mask and p.mask.name
        for p in scan_images(tmp_path / "in", store, ScanConfig(tmp_path / "masks")).images
    }
    assert masks == {"a.jpg": "a.jpg.png", "b.jpg": None, "sub/c.jpg": "c.png"}
    (tmp_path / "none").mkdir()
    with pytest.raises(LinGlueError, match=r"none: holds no mask for any image, expected e.g. a.jpg.png"):
        scan_images(tmp_path / "in", store, ScanConfig(tmp_path / "none"))


def test_changed_content_is_noticed_untouched_is_not_read_again(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in" / "a.png")
    first = scan_images(tmp_path / "in", store).images[0].sha256
    with monkeypatch.context() as patch:
        patch.setattr("linglue.sfm.scan.file_sha256", lambda path: pytest.fail("read again"))
        assert scan_images(tmp_path / "in", store).images[0].sha256 == first
    write(path, 1)
    assert scan_images(tmp_path / "in", store).images[0].sha256 != first


def test_no_photograph_at_all(tmp_path, store):
    with pytest.raises(LinGlueError, match="no such folder"):
        scan_images(tmp_path / "absent", store)
    (tmp_path / "in").mkdir()
    with pytest.raises(LinGlueError, match="holds no image"):
        scan_images(tmp_path / "in", store)
