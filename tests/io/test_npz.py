"""Features and matches on disk: what goes in comes out, files are whole or not there, errors name the file."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.io.npz import load_features, load_matches, save_features, save_matches
from linglue.types import Features, Matches
from random_features import random_features


def make_features(count: int, seed: int = 0, full: bool = True) -> Features:
    return random_features(count, 16, seed, full, "sift" if full else "ünknown kind")


def test_orientations_in_degrees_and_keypoints_of_another_image_are_refused():
    good = make_features(9)
    with pytest.raises(LinGlueError, match=r"oris contain 3.*, expected radians, not degrees"):
        replace(good, oris=np.linspace(0, 340, 9))
    with pytest.raises(LinGlueError, match=r"lies outside the image, expected \(x, y\) within image_size 100x4000"):
        replace(good, image_size=(100, 4000))


def test_upper_case_suffixes(tmp_path):
    save_features(tmp_path / "A.NPZ", make_features(3))
    assert len(load_features(tmp_path / "A.NPZ")) == 3 and [p.name for p in tmp_path.iterdir()] == ["A.NPZ"]
    save_matches(tmp_path / "M.JSON", make_matches([(0, 1)]))
    assert len(load_matches(tmp_path / "M.JSON")) == 1


def make_matches(pairs: list[tuple[int, int]], count0: int = 7, count1: int = 5) -> Matches:
    features0, features1 = make_features(count0, 1), make_features(count1, 2)
    indices = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Matches(
        points0=features0.keypoints[indices[:, 0]],
        points1=features1.keypoints[indices[:, 1]],
        indices=indices,
        scores=np.linspace(0.9, 0.3, len(indices)).astype(np.float32),
        features0=features0,
        features1=features1,
        pair_score=0.625,
    )


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("count", [0, 1, 40_000])
def test_features_come_back_unchanged(tmp_path, count, full):
    path = tmp_path / "f e ü.npz"
    features = make_features(count, full=full)
    save_features(path, features)
    read = load_features(str(path))
    for name in ("keypoints", "descriptors", "scores", "scales", "oris"):
        assert same(getattr(read, name), getattr(features, name)), name
    assert (read.image_size, read.kind) == (features.image_size, features.kind)
    with np.load(path, allow_pickle=False) as file:
        assert ("scales" in file) == full == ("oris" in file)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("pairs", [[], [(3, 4)], [(6, 0), (0, 4), (2, 1)]])
def test_matches_come_back_unchanged(tmp_path, suffix, pairs):
    path = tmp_path / f"matches{suffix}"
    matches = make_matches(pairs)
    save_matches(path, matches)
    read = load_matches(path)
    for name in ("points0", "points1", "indices", "scores"):
        assert same(getattr(read, name), getattr(matches, name)), name
    assert read.pair_score == matches.pair_score
    assert same(read.features0.keypoints, matches.features0.keypoints)
    assert read.features1.image_size == matches.features1.image_size


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_the_files_that_were_matched_are_named(tmp_path, suffix, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_matches(
        f"m{suffix}", replace(make_matches([(0, 1)]), image0=Path("a.jpg"), image1=np.zeros((2, 2, 3), np.uint8))
    )
    read = load_matches(f"m{suffix}")
    assert (read.image0, read.image1) == (tmp_path / "a.jpg", None)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_no_keypoints_at_all_is_fine(tmp_path, suffix):
    path = tmp_path / f"none{suffix}"
    save_matches(path, make_matches([], 0, 0))
    assert len(load_matches(path)) == 0


def test_superglues_names_hold_superglues_values(tmp_path):
    matches = make_matches([(6, 0), (0, 4)])
    save_matches(tmp_path / "m.npz", matches)
    save_matches(tmp_path / "m.json", matches)
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert file["matches"].dtype == np.int64
        assert file["matches"].tolist() == [4, -1, -1, -1, -1, -1, 0]
        assert np.allclose(file["match_confidence"], [0.3, 0, 0, 0, 0, 0, 0.9])
        assert same(file["keypoints0"], matches.features0.keypoints)
        names = set(file.files)
    content = json.loads((tmp_path / "m.json").read_text())
    assert set(content) == names
    assert content["matches"] == [4, -1, -1, -1, -1, -1, 0]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "f.npz"
    old = make_features(3)
    save_features(path, old)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LinGlueError, match=r"f\.npz: cannot be written \(No space left"):
        save_features(path, make_features(9))
    monkeypatch.undo()
    assert same(load_features(path).keypoints, old.keypoints)
    assert [file.name for file in tmp_path.iterdir()] == ["f.npz"]


def test_missing_folder_and_wrong_suffix_are_named(tmp_path):
    with pytest.raises(LinGlueError, match=r"nowhere/f\.npz: cannot be written"):
        save_features(tmp_path / "nowhere" / "f.npz", make_features(1))
    with pytest.raises(LinGlueError, match=r"f\.txt.*expected \.npz"):
        save_features(tmp_path / "f.txt", make_features(1))
    with pytest.raises(LinGlueError, match=r"m\.h5.*expected \.npz or \.json"):
        save_matches(tmp_path / "m.h5", make_matches([]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def pickle_inside(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, keypoints=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    "spoil", [truncate, pickle_inside, lambda p: p.write_text("text"), lambda p: p.write_bytes(b""), Path.unlink]
)
def test_damaged_files_are_named(tmp_path, spoil):
    path = tmp_path / "f.npz"
    save_features(path, make_features(3))
    spoil(path)
    with pytest.raises(LinGlueError, match=r"f\.npz: (damaged|no such)") as caught:
        load_features(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["keypoints", "descriptors", "scores", "image_size", "kind"])
def test_missing_arrays_are_named(tmp_path, missing):
    path = tmp_path / "f.npz"
    save_features(path, make_features(3))
    with np.load(path) as file:
        rest = {name: file[name] for name in file.files if name != missing}
    np.savez(path, **rest)
    with pytest.raises(LinGlueError, match=rf"f\.npz: {missing} is missing"):
        load_features(path)


def test_contradicting_arrays_are_refused(tmp_path):
    path = tmp_path / "f.npz"
    save_features(path, make_features(3))
    with np.load(path) as file:
        arrays = dict(file)
    for change in ({"scores": np.zeros(2)}, {"image_size": np.array([1, 2, 3])}, {"keypoints": np.zeros((3, 3))}):
        np.savez(path, **{**arrays, **change})
        with pytest.raises(LinGlueError, match=r"f\.npz: "):
            load_features(path)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"indices": [[0, 0]]}'])
def test_damaged_json_is_named(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(LinGlueError, match=r"m\.json: "):
        load_matches(tmp_path / "m.json")


def test_indices_outside_the_keypoints_are_refused(tmp_path):
    path = tmp_path / "m.json"
    save_matches(path, make_matches([(0, 0)]))
    content = json.loads(path.read_text())
    for bad in ([[7, 0]], [[0, -1]]):
        path.write_text(json.dumps({**content, "indices": bad}))
        with pytest.raises(LinGlueError, match=r"m\.json: indices point outside"):
            load_matches(path)
