"""Retrieval finds the images that share local features, from any number of images, and the same on every run."""

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.sfm import retrieval as module
from linglue.sfm.retrieval import Retrieval, Vocabulary
from linglue.types import Features

DIM = 16


def features(descriptors: np.ndarray, kind: str = "sift") -> Features:
    count = len(descriptors)
    return Features(keypoints=np.zeros((count, 2)), descriptors=descriptors, image_size=(64, 48), kind=kind)


def view(scene: int, number: int, count: int = 60) -> Features:
    """Some of the scene's descriptors with a little noise: views of a scene share most of theirs."""
    things = np.random.default_rng(scene).normal(size=(80, DIM))
    random = np.random.default_rng((scene, number))
    return features(random.permutation(things)[:count] + random.normal(scale=0.05, size=(count, DIM)))


@pytest.fixture(scope="module")
def images() -> dict[str, Features]:
    return {f"sc ene-{scene}/ü {number}.jpg": view(scene, number) for scene in range(5) for number in range(6)}


@pytest.fixture(scope="module")
def collection(images) -> Retrieval:
    return Retrieval.build(images, images.__getitem__)


def scene_of(name: str) -> str:
    return name.partition("/")[0]


def test_views_of_a_scene_find_each_other(collection, images):
    partners = collection.partners(images, 5)
    assert list(partners) == list(images)
    for name, others in partners.items():
        assert len(others) == 5
        assert name not in others
        assert {scene_of(other) for other in others} == {scene_of(name)}


def test_pairs_are_sorted_and_occur_once(collection):
    pairs = collection.pairs(5)
    assert pairs == sorted(set(pairs))
    assert len(pairs) == 5 * 15  # all pairs within each scene
    assert all(name0 < name1 for name0, name1 in pairs)


def test_a_query_from_outside_finds_its_scene(collection):
    found = collection.nearest(collection.describe(view(3, 99)), 6)
    assert {scene_of(name) for name, _ in found} == {"sc ene-3"}
    similarity = [value for _, value in found]
    assert similarity == sorted(similarity, reverse=True)
    assert all(-1 <= value <= 1.0001 for value in similarity)


def test_an_image_of_the_collection_finds_itself_first(collection, images):
    name = "sc ene-2/ü 4.jpg"
    first, similarity = collection.nearest(collection.describe(images[name]), 1)[0]
    assert first == name
    assert similarity == pytest.approx(1, abs=1e-5)


def test_the_length_of_local_descriptors_does_not_matter(collection, images):
    """Imported SIFT comes as bytes of length 512, ours with length one."""
    one = images["sc ene-0/ü 0.jpg"]
    np.testing.assert_allclose(
        collection.describe(features(512 * one.descriptors)), collection.describe(one), atol=1e-5
    )


def test_neither_the_order_of_names_nor_the_block_matters(collection, images, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 4)
    again = Retrieval.build(reversed(list(images)), images.__getitem__)
    assert np.array_equal(again.descriptors, collection.descriptors)
    assert again.pairs(4) == collection.pairs(4)


def test_the_sample_is_bounded(images, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 200)
    monkeypatch.setattr(module, "SAMPLE_PER_IMAGE", 50)
    loaded: list[str] = []

    def load(name: str) -> Features:
        loaded.append(name)
        return images[name]

    vocabulary = Vocabulary.learn(sorted(images), load)
    assert len(loaded) == 4
    assert len(vocabulary.words) == 200 // module.SAMPLE_PER_WORD


def test_images_without_keypoints_get_no_pairs(images):
    empty = features(np.zeros((0, DIM)))
    some = {**dict(list(images.items())[:6]), "black.jpg": empty, "white.jpg": empty}
    collection = Retrieval.build(some, some.__getitem__)
    assert "black.jpg" not in collection.names
    assert len(collection.pairs(20)) == 15
    assert collection.partners(["black.jpg"]) == {}
    assert not collection.describe(empty).any()
    assert collection.nearest(collection.describe(empty)) == []


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("keypoints", [1, 5, 60])
def test_few_images_with_few_keypoints(count, keypoints):
    images = {f"{i}": view(0, i, keypoints) for i in range(count)}
    collection = Retrieval.build(images, images.__getitem__)
    assert len(collection.pairs()) == count * (count - 1) // 2
    assert np.isfinite(collection.descriptors).all()


def test_equal_descriptors_everywhere():
    images = {name: features(np.ones((50, DIM))) for name in "abc"}
    assert len(Retrieval.build(images, images.__getitem__).pairs()) == 3


@pytest.mark.parametrize("names", [[], ["a"]])
def test_no_keypoint_at_all_is_an_error(names):
    with pytest.raises(LinGlueError, match=f"none of the {len(names)} images has a keypoint"):
        Retrieval.build(names, lambda _: features(np.zeros((0, DIM))))


def test_it_comes_back_from_disk(collection, tmp_path):
    path = tmp_path / "retrieval ü.npz"
    collection.save(path)
    read = Retrieval.load(path)
    assert read.names == collection.names
    assert np.array_equal(read.descriptors, collection.descriptors)
    query = view(1, 50)
    assert read.nearest(read.describe(query)) == collection.nearest(collection.describe(query))


def test_a_damaged_file_is_named(collection, tmp_path):
    path = tmp_path / "retrieval.npz"
    with pytest.raises(LinGlueError, match=r"retrieval\.npz: missing, damaged"):
        Retrieval.load(path)
    collection.save(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(LinGlueError, match=r"retrieval\.npz: missing, damaged"):
        Retrieval.load(path)


def test_other_features_are_refused(collection):
    with pytest.raises(LinGlueError, match=r"kind 'disk'.*'sift'"):
        collection.describe(features(np.ones((3, DIM)), kind="disk"))
    with pytest.raises(LinGlueError, match=r"8 entries.*16"):
        collection.describe(features(np.ones((3, 8))))
