"""What is found in a folder of images."""

import os
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.sfm.scan import ScanConfig, check_name, scan_images
from linglue.sfm.store import FeatureStore

real_scandir, real_sha256 = os.scandir, file_sha256


def write(path, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def store(tmp_path) -> Iterator[FeatureStore]:
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


def test_the_work_folder_may_lie_among_the_images(tmp_path, store):
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


def test_no_image_at_all(tmp_path, store):
    with pytest.raises(LinGlueError, match="no such folder"):
        scan_images(tmp_path / "absent", store)
    (tmp_path / "in").mkdir()
    with pytest.raises(LinGlueError, match="holds no image"):
        scan_images(tmp_path / "in", store)


def test_folders_and_files_that_cannot_be_read_are_a_line_each(tmp_path, store, monkeypatch):
    folder = tmp_path / "in"
    for number, name in enumerate(["a.png", "closed/b.png", "c.png"]):
        write(folder / name, number)

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_scandir(path)

    def sha256(path):
        if path.name == "c.png":
            raise LinGlueError(f"{path}: cannot be read (Permission denied), expected a readable file")
        return real_sha256(path)

    monkeypatch.setattr("linglue.sfm.scan.os.scandir", scandir)
    monkeypatch.setattr("linglue.sfm.scan.file_sha256", sha256)
    found = scan_images(folder, store)
    assert [image.name for image in found.images] == ["a.png"]
    assert found.problems == [
        "closed: folder left out (Permission denied)",
        "c.png: left out (cannot be read (Permission denied), expected a readable file)",
    ]


def test_links_in_a_circle_and_to_nothing(tmp_path, store):
    folder = tmp_path / "in"
    write(folder / "a.png")
    write(tmp_path / "elsewhere" / "b.png", 1)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder)
    (folder / "circle.png").symlink_to(folder / "circle.png")
    (folder / "nothing.png").symlink_to(folder / "missing.png")
    found = scan_images(folder, store)
    assert [image.name for image in found.images] == ["a.png", "linked/b.png"]
    assert sorted(problem.split(":")[0] for problem in found.problems) == ["again", "circle.png", "nothing.png"]


def test_an_empty_folder_with_masks(tmp_path, store):
    (tmp_path / "in").mkdir()
    (tmp_path / "masks").mkdir()
    with pytest.raises(LinGlueError, match="holds no image"):
        scan_images(tmp_path / "in", store, ScanConfig(tmp_path / "masks"))


@pytest.mark.parametrize("name", ["../a.jpg", "/a.jpg", "a/../../b.jpg", "a\tb", "", "a\\..\\b.jpg"])
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(LinGlueError, match="expected a plain path below a folder"):
        check_name(name, "features.h5")
