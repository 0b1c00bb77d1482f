"""The rendered room on disk as evaluations want it: images/ and gt/, with the truth of all cameras."""

from pathlib import Path

import cv2
import numpy as np

from rendered import View


def write_epfl(folder: Path, views: tuple[View, ...]) -> Path:
    """Images `view N.png` and their gt files; returns the folder."""
    for sub in ("images", "gt"):
        (folder / sub).mkdir(parents=True)
    for view in views:
        name = Path(view.name).name
        cv2.imwrite(str(folder / "images" / name), cv2.cvtColor(view.image, cv2.COLOR_RGB2BGR))
        pose = view.cam_from_world
        numbers = [*view.camera.size, *view.camera.matrix.ravel(), *pose[:, :3].ravel(), *pose[:, 3]]
        text = " ".join(repr(float(number)) for number in np.array(numbers))
        (folder / "gt" / f"{name}.txt").write_text(f"# truth\n{text}\n", encoding="utf-8")
    return folder
