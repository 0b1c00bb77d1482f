"""Of a collection of images only those that show the same thing are worth a teacher's time."""

import cv2
from skimage import data

from linglue.training.sources.likely import likely_pairs


def test_only_related_images_are_chosen(tmp_path):
    photos = {"a0": data.astronaut(), "a1": data.astronaut()[40:460, 20:480], "b0": data.coffee()}
    for name, photo in photos.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), photo[..., ::-1])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert likely_pairs(tmp_path, names, most=5) == [(0, 1)]
    assert likely_pairs(tmp_path, names, most=0) == []
