from __future__ import annotations

import pickle

import cv2
import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.training.images.image_set import Deck, ImageSet


def test_folder(tmp_path, images):
    (tmp_path / "sub").mkdir()
    for k in range(20):
        cv2.imwrite(str(tmp_path / ("sub" if k % 2 else ".") / f"{k}.png"), images[0][:40, :60])
    (tmp_path / "notes.txt").write_text("not an image")
    every = ImageSet.in_folder(tmp_path)
    assert len(every) == 20 and every[3].shape == (40, 60, 3)
    train, held = every.split(0.3)
    assert len(train) + len(held) == 20 and 1 <= len(held) <= 12
    assert not set(train.paths) & set(held.paths)
    again = pickle.loads(pickle.dumps(every))
    np.testing.assert_array_equal(again[0], every[0])
    assert len(every[:5]) == 5


def test_empty_folder(tmp_path):
    with pytest.raises(LinGlueError, match="no images"):
        ImageSet.in_folder(tmp_path)


def test_deck_repeats_only_when_exhausted(rng):
    images = [np.full((4, 4, 3), k, dtype=np.uint8) for k in range(5)]
    deck = Deck(images, rng)
    drawn = [int(deck.draw()[0, 0, 0]) for _ in range(5)]
    assert sorted(drawn) == list(range(5)) and deck.exhausted
    assert int(deck.draw()[0, 0, 0]) == drawn[0]
