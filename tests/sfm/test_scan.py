"""What is found in a folder of photographs."""

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue.errors import LinGlueError
from linglue.sfm.feature_store import FeatureStore
from linglue.sfm.scan import survey


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
    found = survey(tmp_path / "in", store)
    assert [p.name for p in found.photos] == sorted(names)
    assert found.problems == found.notes == []


def test_each_problem_is_a_line(tmp_path, store):
    folder = tmp_path / "in"
    write(folder / "a.png")
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())
    (folder / "notes.txt").write_text("remember the milk")
    exif = Image.Exif()
    exif[274] = 6
    write(folder / "turned.jpg", 1, exif=exif)
    found = survey(folder, store)
    assert [p.name for p in found.photos] == ["a.png", "turned.jpg"]
    assert found.problems == ["b.png: the same photograph as a.png, left out", "notes.txt: not a photograph, left out"]
    assert found.notes == ["turned.jpg: turned upright as its EXIF says"]


def test_the_work_folder_may_lie_among_the_photographs(tmp_path, store):
    write(tmp_path / "in" / "a.png")
    write(tmp_path / "in" / "work" / "pictures" / "model.png", 1)
    assert [p.name for p in survey(tmp_path / "in", store, besides=tmp_path / "in" / "work").photos] == ["a.png"]


def test_masks_by_colmaps_name_or_their_own(tmp_path, store):
    for i, name in enumerate(["a.jpg", "b.jpg", "sub/c.jpg"]):
        write(tmp_path / "in" / name, i)
    cv2.imwrite(str(write(tmp_path / "masks" / "a.jpg.png")), np.ones((40, 60)))
    cv2.imwrite(str(write(tmp_path / "masks" / "sub" / "c.png")), np.ones((40, 60)))
    masks = {p.name: p.mask and p.mask.name for p in survey(tmp_path / "in", store, tmp_path / "masks").photos}
    assert masks == {"a.jpg": "a.jpg.png", "b.jpg": None, "sub/c.jpg": "c.png"}
    (tmp_path / "none").mkdir()
    with pytest.raises(LinGlueError, match=r"none: holds no mask for any photograph, expected e.g. a.jpg.png"):
        survey(tmp_path / "in", store, tmp_path / "none")


def test_changed_content_is_noticed_untouched_is_not_read_again(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in" / "a.png")
    first = survey(tmp_path / "in", store).photos[0].sha256
    with monkeypatch.context() as patch:
        patch.setattr("linglue.sfm.scan.file_sha256", lambda path: pytest.fail("read again"))
        assert survey(tmp_path / "in", store).photos[0].sha256 == first
    write(path, 1)
    assert survey(tmp_path / "in", store).photos[0].sha256 != first


def test_no_photograph_at_all(tmp_path, store):
    with pytest.raises(LinGlueError, match="no such folder"):
        survey(tmp_path / "absent", store)
    (tmp_path / "in").mkdir()
    with pytest.raises(LinGlueError, match="holds no photograph"):
        survey(tmp_path / "in", store)
