"""Labelled pairs of different images: which keypoints of their lessons match, and that they are learned from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.features.sift import Sift
from linglue.training.config import read_toml
from linglue.training.front_end.config import FrontEndConfig
from linglue.training.front_end.lessons import Lessons
from linglue.training.front_end.real_pairs import RealConfig, RealPairs
from linglue.training.front_end.trainer import FrontEndTrainer

SHIFT = np.float32([512 - 380, 0])  # brick0 and brick1 are the left and the right part of one image


@pytest.fixture
def lessons(folder) -> Lessons:
    found = Lessons(folder / "lessons", sorted((folder / "images").glob("*.png")), "0" * 64, 500)
    found.prepare(Sift())
    return found


@pytest.fixture
def labels(tmp_path, lessons) -> Path:
    """Labels of one pair: the keypoints of brick1 that lie in brick0, too."""
    number = [path.name for path in lessons.images].index("brick1.png")
    points1 = lessons[number].keypoints
    points0 = points1 + SHIFT
    inside = points0[:, 0] < 379
    (tmp_path / "images").mkdir()
    np.savez(
        tmp_path / "images" / "a.npz",
        scene=np.array("images"),
        names=np.array(["brick0.png", "brick1.png"]),
        longer_side=np.array(1024),
        points0=points0[inside],
        points1=points1[inside],
    )
    return tmp_path


def test_keypoints_beside_both_ends_of_a_label_match(lessons, labels):
    real = RealPairs(RealConfig(share=0.5, labels=labels), lessons)
    zero, one, matches = real.draw(np.random.default_rng(0))
    assert len(real) == 1 and [lessons.images[k].name for k in (zero, one)] == ["brick0.png", "brick1.png"]
    offset = lessons[zero].keypoints[matches[:, 0]] - lessons[one].keypoints[matches[:, 1]]
    assert len(matches) > 60 and np.abs(offset - SHIFT).max() < 2.5
    assert all(len(set(column)) == len(matches) for column in matches.T.tolist())


def test_images_without_a_lesson_are_left_out(lessons, labels):
    without = Lessons(labels, [p for p in lessons.images if p.name != "brick0.png"], "0" * 64, 500)
    with pytest.raises(LinGlueError, match="no labelled pair"):
        RealPairs(RealConfig(share=0.5, labels=labels), without)


def test_a_folder_must_be_named(lessons):
    with pytest.raises(LinGlueError, match=r"real\.labels is None, expected a folder"):
        RealPairs(RealConfig(share=0.5), lessons)


def test_they_are_learned_from(folder, labels, tmp_path):
    config = read_toml(folder / "run.toml", FrontEndConfig)
    trainer = FrontEndTrainer(replace(config, output=tmp_path / "run", real=RealConfig(share=0.9, labels=labels)))
    batches = [trainer.make_batch(step) for step in range(3)]
    assert any(batch.one_from_zero.isnan().any() for batch in batches)  # two images, no homography
    again = trainer.make_batch(1)
    assert again.images.equal(batches[1].images) and again.matches.equal(batches[1].matches)
    losses = trainer.objective(batches[0])
    assert all(loss.isfinite() for loss in losses.values())
