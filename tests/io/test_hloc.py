"""hloc's feature files, as hloc writes them and as we do."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.io.hloc import list_hloc_images, load_hloc_features, write_hloc_features
from linglue.types import Features


def hloc_writes(
    path: Path, name: str, count: int = 6, half: bool = True, scores: str | None = "scores", **more
) -> dict:
    """A group in hloc's own manner: descriptors (D, N), float16 unless told otherwise."""
    random = np.random.default_rng(count)
    arrays = {
        "keypoints": random.uniform(0, 600, (count, 2)),
        "descriptors": random.normal(size=(256, count)),
        **({} if scores is None else {scores: random.uniform(size=count)}),
        **more,
    }
    arrays = {key: value.astype(np.float16 if half else np.float32) for key, value in arrays.items()}
    arrays["image_size"] = np.array([640, 480])
    with h5py.File(path, "a") as file:
        group = file.create_group(name)
        for key, value in arrays.items():
            group.create_dataset(key, data=value)
        group["keypoints"].attrs["uncertainty"] = 1.0
    return arrays


def features(count: int = 4, full: bool = True) -> Features:
    random = np.random.default_rng(count)
    return Features(
        keypoints=random.uniform(0, 4000, (count, 2)),
        descriptors=random.normal(size=(count, 8)),
        image_size=(5000, 4000),
        scores=random.uniform(size=count),
        scales=random.uniform(1, 5, count) if full else None,
        oris=random.uniform(0, 6, count) if full else None,
        kind="sift",
    )


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("scores", ["scores", "keypoint_scores"])
def test_reads_what_hloc_writes(tmp_path, half, scores):
    stored = hloc_writes(tmp_path / "feats.h5", "db/day 1/ä.jpg", half=half, scores=scores)
    read = load_hloc_features(tmp_path / "feats.h5", "db/day 1/ä.jpg", kind="superpoint")
    assert read.kind == "superpoint"
    assert read.image_size == (640, 480)
    assert read.keypoints.dtype == np.float32
    assert np.array_equal(read.keypoints, stored["keypoints"].astype(np.float32))
    assert np.array_equal(read.descriptors, stored["descriptors"].T.astype(np.float32))
    assert np.array_equal(read.scores, stored[scores].astype(np.float32))
    assert read.scales is None and read.oris is None


def test_scores_may_be_absent(tmp_path):
    hloc_writes(tmp_path / "feats.h5", "a.jpg", scores=None)
    assert (load_hloc_features(tmp_path / "feats.h5", "a.jpg").scores == 1).all()


def test_dog_files_are_converted_on_request(tmp_path):
    path = tmp_path / "feats.h5"
    hloc_writes(path, "a.jpg", count=2, half=False, scales=np.array([1.5, 4.0]), oris=np.array([90.0, -180.0]))
    dog = load_hloc_features(path, "a.jpg", kind="sift", dog=True)
    assert np.allclose(dog.oris, [np.pi / 2, -np.pi])
    assert np.allclose(dog.scales, [3, 8])
    as_stored = load_hloc_features(path, "a.jpg")
    assert np.allclose(as_stored.oris, [90, -180]) and np.allclose(as_stored.scales, [1.5, 4])


def test_names_are_listed_through_nested_groups(tmp_path):
    names = ["a.jpg", "db/1.jpg", "db/deep/1.jpg", "ü b.jpg"]
    for name in names:
        hloc_writes(tmp_path / "feats.h5", name)
    assert list_hloc_images(tmp_path / "feats.h5") == sorted(names)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("count", [0, 5])
def test_what_we_write_comes_back(tmp_path, count, full):
    path, written = tmp_path / "ours.h5", features(count, full)
    write_hloc_features(path, "q/x.jpg", written)
    read = load_hloc_features(path, "q/x.jpg", kind="sift")
    for name in ("keypoints", "descriptors", "scores", "scales", "oris"):
        a, b = getattr(read, name), getattr(written, name)
        assert (a is None and b is None) or np.array_equal(a, b), name
    assert read.image_size == written.image_size
    with h5py.File(path) as file:
        assert file["q/x.jpg/descriptors"].shape == (8, count)
        assert file["q/x.jpg/keypoints"].dtype == np.float32


def test_rewriting_replaces_the_image_and_nothing_else(tmp_path):
    path = tmp_path / "ours.h5"
    for name, item in (("a", features(4)), ("a/b.jpg", features(5)), ("c.jpg", features(6)), ("a", features(2, False))):
        write_hloc_features(path, name, item)
    assert list_hloc_images(path) == ["a", "a/b.jpg", "c.jpg"]
    assert [len(load_hloc_features(path, name)) for name in ("a", "a/b.jpg", "c.jpg")] == [2, 5, 6]
    assert load_hloc_features(path, "a").scales is None


def test_a_name_inside_a_dataset_is_refused(tmp_path):
    write_hloc_features(tmp_path / "ours.h5", "a", features())
    with pytest.raises(LinGlueError, match=r"ours\.h5: 'a/keypoints'"):
        write_hloc_features(tmp_path / "ours.h5", "a/keypoints", features())


def test_errors_name_file_and_image(tmp_path):
    path = tmp_path / "feats.h5"
    with pytest.raises(LinGlueError, match=r"feats\.h5: no such"):
        list_hloc_images(path)
    path.write_text("text")
    with pytest.raises(LinGlueError, match=r"feats\.h5: not an HDF5 file") as caught:
        load_hloc_features(path, "a.jpg")
    assert "\n" not in str(caught.value)
    with pytest.raises(LinGlueError, match=r"nowhere.feats\.h5"):
        write_hloc_features(tmp_path / "nowhere" / "feats.h5", "a.jpg", features())
    path.unlink()
    hloc_writes(path, "db/a.jpg")
    for name in ("b.jpg", "db/a.jpg/keypoints"):
        with pytest.raises(LinGlueError, match=rf"feats\.h5: no image '{name}'"):
            load_hloc_features(path, name)
    with pytest.raises(LinGlueError, match=r"feats\.h5: image 'db' has no keypoints"):
        load_hloc_features(path, "db")
    with h5py.File(path, "a") as file:
        del file["db/a.jpg/image_size"]
    with pytest.raises(LinGlueError, match=r"feats\.h5: image 'db/a.jpg' has no image_size"):
        load_hloc_features(path, "db/a.jpg")


def test_contradicting_arrays_are_refused_by_name(tmp_path):
    path = tmp_path / "feats.h5"
    hloc_writes(path, "a.jpg")
    with h5py.File(path, "a") as file:
        del file["a.jpg/descriptors"]
        file["a.jpg/descriptors"] = np.zeros((6, 256))  # (N, D), the wrong way round
    with pytest.raises(LinGlueError, match=r"feats\.h5: image 'a.jpg': descriptors has shape"):
        load_hloc_features(path, "a.jpg")
