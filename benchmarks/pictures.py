"""The pictures of docs/viewing.md, docs/dense.md and README.md: `python benchmarks/pictures.py docs/images`.

A rendered room, reconstructed, looked at by a headless Chromium (Debian: apt install chromium).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import cv2
import torch

from linglue.dense.dense import DenseConfig, densify
from linglue.io.images import Image
from linglue.sfm.report import write_report
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import Workspace
from linglue.viewer.contents import WorkContents
from linglue.viewer.server import Viewer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from benchmarks.dense import draw, room_model

from chromium import Browser
from rendered import SIZE

QUALITY = 85
DRAWN = 15.0  # seconds until a browser has drawn everything


def picture_view(work: Workspace, folder: Path) -> Image:
    """The page of `linglue view`: a camera and a pair are chosen, the scene is seen from behind the cameras."""
    viewer = Viewer(WorkContents(work.folder), port=0)
    try:
        names = viewer.contents.scene.names
        for handle, value in zip(
            (viewer._graph, viewer._names, *viewer._pair), (True, *names[4:6], names[4]), strict=True
        ):
            handle.value = value  # as if a visitor had chosen it
        with Browser(folder, (1400, 990)) as browser:
            browser.open(viewer.address)
            browser.wait_for_text(f"{len(names)} images with a pose")
            time.sleep(DRAWN)
            return browser.picture()
    finally:
        viewer.close()


def picture_report(work: Workspace, folder: Path) -> Image:
    """The beginning of `linglue report`."""
    page = folder / "report.html"
    write_report(work, page)
    with Browser(folder, (1000, 1750)) as browser:
        browser.open(page.as_uri())
        browser.wait_for_text("Model")
        time.sleep(DRAWN)
        return browser.picture()


def write(path: Path, image: Image) -> None:
    """A JPEG file of an RGB image."""
    cv2.imwrite(str(path), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, metavar="DIR", help="where view.jpg, report.jpg and dense.jpg go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        work = room_model(folder)
        for name, take in (("view", picture_view), ("report", picture_report)):
            (folder / name).mkdir()
            write(options.target / f"{name}.jpg", take(work, folder / name))
        cloud = densify(work, folder / "points.ply", DenseConfig(longer_side=max(SIZE)))
        draw(options.target / "dense.jpg", cloud, read_model(work.model))
        print(options.target / "dense.jpg")


if __name__ == "__main__":
    main()
