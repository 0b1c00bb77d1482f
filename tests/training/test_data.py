"""The data of a run: real scenes that are held out are validated on and never learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data

from linglue.errors import LinGlueError
from linglue.training.config import DataConfig, RunConfig, TeacherPairs
from linglue.training.data import prepare_data, real_sources

SCENES = {"cat": skimage.data.chelsea, "cup": skimage.data.coffee}
TURN = np.array([[0.98, -0.17, 20.0], [0.17, 0.98, -10.0]], dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images, and two scenes of two images with a teacher's labels."""
    base = tmp_path_factory.mktemp("data")
    (base / "images").mkdir()
    for name in ("astronaut", "rocket"):
        image = getattr(skimage.data, name)()
        for number in range(15):
            part = image[10 * number :, 5 * number :]
            cv2.imwrite(str(base / "images" / f"{name}{number}.png"), part[..., ::-1])
    for name, load in SCENES.items():
        image = load()[..., ::-1]
        images, labels = base / "scenes" / name, base / "labels" / name
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        cv2.imwrite(str(images / "a.png"), image)
        cv2.imwrite(str(images / "b.png"), cv2.warpAffine(image, TURN, image.shape[1::-1]))
        grid = np.mgrid[0 : image.shape[1] : 6, 0 : image.shape[0] : 6].reshape(2, -1).T.astype(np.float32)
        np.savez(
            labels / "pair.npz",
            scene=np.array(name),
            names=np.array(["a.png", "b.png"]),
            longer_side=np.array(1024),
            points0=grid,
            points1=grid @ TURN[:, :2].T + TURN[:, 2],
        )
    return base


def config_of(folder: Path, **teacher: object) -> RunConfig:
    source = TeacherPairs(images=folder / "scenes", labels=folder / "labels")
    data = DataConfig(
        images=folder / "images",
        pairs=3,
        validation_pairs=2,
        keypoints=300,
        longer_side=480,
        parallax=0.0,
        teacher=replace(source, **teacher),
        unrelated=0,
        workers=1,
    )
    return RunConfig(output=folder / "run", data=data)


def shown(config: RunConfig, held_out: bool) -> set[str]:
    makers = real_sources(config.data, held_out)
    draws = [np.random.default_rng(seed) for seed in range(12)]
    return {str(name) for maker, _ in makers.values() for rng in draws for name in maker.sample([], rng).shows}


def test_held_out_scenes_are_not_learned_from(folder):
    some = config_of(folder, share=1.0, held_out=("cu*",))
    assert shown(some, held_out=False) == {"images:cat"}
    assert shown(some, held_out=True) == {"images:cup"}
    every = config_of(folder, share=1.0)
    assert shown(every, held_out=False) == {"images:cat", "images:cup"}
    assert shown(every, held_out=True) == set()


def test_scenes_may_be_validated_on_without_learning_from_any(folder):
    config = config_of(folder, held_out=("cu*",))
    assert shown(config, held_out=False) == set()
    assert shown(config, held_out=True) == {"images:cup"}


def test_real_pairs_are_validated_on_beside_the_made_ones(folder):
    pairs, validation = prepare_data(config_of(folder, share=1.0, held_out=("cu*",)))
    assert pairs.sources == ["homography", "teacher", "unrelated"]
    assert list(validation) == ["homography", "teacher"]
    width, height = SCENES["cup"]().shape[1::-1]
    for pair in validation["teacher"]:
        assert tuple(pair["image0"]["image_size"]) == (width, height)
        assert (pair["matches0"] >= 0).sum() >= 50


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ({"labels": Path("/nowhere")}, "nowhere"),
        ({"images": Path("/nowhere")}, "/nowhere/cat: no such folder"),
        ({"held_out": ("dog",)}, "'dog', expected scenes such as cat, cup"),
        ({"held_out": ("c*",)}, "none of 2 scenes"),
        ({"exclude": ("cat",), "held_out": ("cup",)}, "none of 2 scenes"),
    ],
)
def test_wrong_scenes_are_noticed_before_anything_is_made(folder, tmp_path, teacher, words):
    config = replace(config_of(folder, share=1.0, **teacher), output=tmp_path / "run")
    with pytest.raises(LinGlueError, match=words):
        prepare_data(config)
    assert not config.output.exists()


def test_excluded_scenes_are_not_used_at_all(folder):
    config = config_of(folder, share=1.0, exclude=("cup",))
    assert shown(config, held_out=False) == {"images:cat"} and shown(config, held_out=True) == set()


def test_a_single_image_is_counted(folder, tmp_path):
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "a.png"), skimage.data.coffee())
    config = config_of(folder)
    with pytest.raises(LinGlueError, match=r"images: 1 images"):
        prepare_data(replace(config, data=replace(config.data, images=tmp_path / "images")))
