"""hloc's feature and match files, as hloc writes them and as we do."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.io.hloc import (
    list_hloc_images,
    load_hloc_features,
    load_hloc_matches,
    save_hloc_features,
    save_hloc_matches,
)
from linglue.types import Features
from random_features import random_features


def hloc_writes(
    path: Path, name: str, count: int = 6, half: bool = True, scores: str | None = "scores", **more
) -> dict:
    """A group in hloc's own manner: descriptors (D, N), float16 unless told otherwise."""
    random = np.random.default_rng(count)
    arrays = {
        "keypoints": random.uniform(0, 480, (count, 2)),
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
    return random_features(count, seed=count, full=full)


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
    with pytest.raises(LinGlueError, match=r"'a.jpg': oris contain -180, expected radians.*need --hloc-dog"):
        load_hloc_features(path, "a.jpg")


@pytest.mark.parametrize(
    ("made_by", "said", "reason"),
    [("aliked", "sift", "negative entries"), ("sift", "aliked", "no negative"), ("raw", "sift", "length of 512")],
)
def test_files_of_another_front_end_are_refused(tmp_path, made_by, said, reason):
    random = np.random.default_rng(0)
    descriptors = random.normal(size=(50, 128)) if made_by == "aliked" else random.uniform(size=(50, 128))
    descriptors *= (512 if made_by == "raw" else 1) / np.linalg.norm(descriptors, axis=1, keepdims=True)
    found = replace(features(50), descriptors=descriptors)
    save_hloc_features(tmp_path / "f.h5", [("a.jpg", found)])
    with pytest.raises(LinGlueError, match=f"f.h5: image 'a.jpg': descriptors have .*{reason}.*expected .*{said}"):
        load_hloc_features(tmp_path / "f.h5", "a.jpg", kind=said)
    assert len(load_hloc_features(tmp_path / "f.h5", "a.jpg")) == 50  # of an unknown kind nothing is expected


def test_names_are_listed_through_nested_groups(tmp_path):
    names = ["a.jpg", "db/1.jpg", "db/deep/1.jpg", "ü b.jpg"]
    for name in names:
        hloc_writes(tmp_path / "feats.h5", name)
    assert list_hloc_images(tmp_path / "feats.h5") == sorted(names)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("count", [0, 5])
def test_what_we_write_comes_back(tmp_path, count, full):
    path, written = tmp_path / "ours.h5", features(count, full)
    save_hloc_features(path, [("q/x.jpg", written)])
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
    items = (("a", features(4)), ("a/b.jpg", features(5)), ("c.jpg", features(6)), ("a", features(2, False)))
    save_hloc_features(path, items)
    assert list_hloc_images(path) == ["a", "a/b.jpg", "c.jpg"]
    assert [len(load_hloc_features(path, name)) for name in ("a", "a/b.jpg", "c.jpg")] == [2, 5, 6]
    assert load_hloc_features(path, "a").scales is None


def test_a_name_inside_a_dataset_is_refused(tmp_path):
    with pytest.raises(LinGlueError, match=r"ours\.h5: 'a/keypoints'"):
        save_hloc_features(tmp_path / "ours.h5", [("a", features()), ("a/keypoints", features())])


def test_errors_name_file_and_image(tmp_path):
    path = tmp_path / "feats.h5"
    with pytest.raises(LinGlueError, match=r"feats\.h5: no such"):
        list_hloc_images(path)
    path.write_text("text")
    with pytest.raises(LinGlueError, match=r"feats\.h5: not an HDF5 file") as caught:
        load_hloc_features(path, "a.jpg")
    assert "\n" not in str(caught.value)
    with pytest.raises(LinGlueError, match=r"nowhere.feats\.h5"):
        save_hloc_features(tmp_path / "nowhere" / "feats.h5", [("a.jpg", features())])
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


def test_a_whole_file_appears_at_once(tmp_path):
    path = tmp_path / "ours.h5"
    save_hloc_features(path, ((name, features(count)) for name, count in (("db/ü 1.jpg", 3), ("db/ü 1.png", 0))))
    assert list_hloc_images(path) == ["db/ü 1.jpg", "db/ü 1.png"]
    assert np.array_equal(load_hloc_features(path, "db/ü 1.jpg").keypoints, features(3).keypoints)
    before = path.read_bytes()

    def breaks():
        yield "a.jpg", features()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_hloc_features(path, breaks())
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["ours.h5"]
    with pytest.raises(LinGlueError, match=r"nowhere.x\.h5"):
        save_hloc_features(tmp_path / "nowhere" / "x.h5", [])


def hloc_matches(path: Path, group: str, partner: list[int], scores: list[float] | None) -> None:
    """One pair as hloc's match_features writes it: 16-bit indices, half-precision scores."""
    with h5py.File(path, "a", libver="latest") as file:
        made = file.create_group(group)
        made.create_dataset("matches0", data=np.array(partner, dtype=np.int16))
        if scores is not None:
            made.create_dataset("matching_scores0", data=np.array(scores, dtype=np.float16))


@pytest.mark.parametrize("group", ["db-1.jpg/q-ä 2.jpg", "db-1.jpg_q-ä 2.jpg"])
def test_reads_the_matches_hloc_writes_in_either_order(tmp_path, group):
    hloc_matches(tmp_path / "m.h5", group, [-1, 4, -1, 0], [0, 0.5, 0, 0.25])
    indices, scores = load_hloc_matches(tmp_path / "m.h5", "db/1.jpg", "q/ä 2.jpg")
    assert indices.dtype == np.int64 and indices.tolist() == [[1, 4], [3, 0]]
    assert scores.dtype == np.float32 and scores.tolist() == [0.5, 0.25]
    indices, scores = load_hloc_matches(tmp_path / "m.h5", "q/ä 2.jpg", "db/1.jpg")
    assert indices.tolist() == [[4, 1], [0, 3]] and scores.tolist() == [0.5, 0.25]


def test_matches_without_scores_or_without_any(tmp_path):
    hloc_matches(tmp_path / "m.h5", "a.jpg/b.jpg", [2, -1], None)
    assert load_hloc_matches(tmp_path / "m.h5", "a.jpg", "b.jpg")[1].tolist() == [1]
    hloc_matches(tmp_path / "m.h5", "a.jpg/c.jpg", [-1, -1], [0, 0])
    indices, scores = load_hloc_matches(tmp_path / "m.h5", "a.jpg", "c.jpg")
    assert indices.shape == (0, 2) and scores.shape == (0,)


def test_hloc_reads_the_matches_we_write(tmp_path):
    pairs = [
        ("db/1.jpg", "q/2.jpg", np.array([[3, 70000], [0, 1]]), np.array([0.9, 0.1])),
        ("db/1.jpg", "q/3.jpg", np.zeros((0, 2), np.int64), np.zeros(0)),
    ]
    counts = {"db/1.jpg": 5, "q/2.jpg": 80000, "q/3.jpg": 0}
    save_hloc_matches(tmp_path / "m.h5", iter(pairs), counts)
    with h5py.File(tmp_path / "m.h5") as file:  # as hloc's get_matches does
        stored = file["db-1.jpg/q-2.jpg"]["matches0"].__array__()
        assert stored.dtype == np.int32 and stored.tolist() == [1, -1, -1, 70000, -1]
        assert np.allclose(file["db-1.jpg/q-2.jpg"]["matching_scores0"].__array__(), [0.1, 0, 0, 0.9, 0])
        assert file["db-1.jpg/q-3.jpg"]["matches0"].__array__().tolist() == [-1] * 5
    indices, scores = load_hloc_matches(tmp_path / "m.h5", "db/1.jpg", "q/2.jpg")
    assert indices.tolist() == [[0, 1], [3, 70000]] and np.allclose(scores, [0.1, 0.9])


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([("x.jpg", "b.jpg", [[0, 0]])], "keypoints of 'x.jpg' is not given"),
        ([("a/b.jpg", "b.jpg", [[0, 4]])], "outside the keypoints of 'b.jpg', expected 0 to 3"),
        ([("a/b.jpg", "b.jpg", [[0, 0]]), ("a-b.jpg", "b.jpg", [[1, 1]])], "cannot tell '/' in names from '-'"),
    ],
)
def test_matches_that_cannot_be_written_leave_no_file(tmp_path, pairs, complaint):
    items = [(name0, name1, np.array(indices), np.ones(len(indices))) for name0, name1, indices in pairs]
    with pytest.raises(LinGlueError, match=rf"m\.h5: .*{complaint}"):
        save_hloc_matches(tmp_path / "m.h5", items, {"a/b.jpg": 4, "a-b.jpg": 4, "b.jpg": 4})
    assert not list(tmp_path.iterdir())


def test_missing_matches_are_named(tmp_path):
    hloc_matches(tmp_path / "m.h5", "a.jpg/b.jpg", [0], [1])
    with pytest.raises(LinGlueError, match=r"m\.h5: no matches of 'a\.jpg' and 'c\.jpg'"):
        load_hloc_matches(tmp_path / "m.h5", "a.jpg", "c.jpg")
    with pytest.raises(LinGlueError, match=r"none\.h5: no such hloc file"):
        load_hloc_matches(tmp_path / "none.h5", "a.jpg", "c.jpg")
