"""Dense points measured, on a rendered room of known surface and on a folder of images.

`python benchmarks/dense.py RESULTS` keeps the figures in RESULTS, a JSON file; `--docs docs/dense.md` puts them into
the page, `--picture` draws the cloud.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from scipy.spatial import cKDTree

from linglue.dense.dense import DenseConfig, densify
from linglue.evaluation.result import Result, Table
from linglue.evaluation.suite import MEASURED
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.ply import Cloud
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import Workspace
from linglue.training.sources.renderer import see

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from rendered import SIZE, _room, render, write_images

IMAGES = 10  # of the room
WITHIN = 0.01  # of the size of the room
NIGHT = (20, 22, 26)  # behind the drawn points
EVERY = 2  # pixels between two samples of the true surface
NOTE = (
    "shares: of the surface that any image sees with a point within 1 % of the room's size, and of the points that lie "
    "so near to the true surface; by benchmarks/dense.py"
)
BEGIN, END = "<!-- begin figures: written by benchmarks/dense.py -->", "<!-- end figures -->"


@contextmanager
def measured(found: dict[str, Any]) -> Iterator[None]:
    """Adds time by the clock, CPU time and peak memory of this process."""
    start, cpu = time.perf_counter(), time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found |= {
        "date": time.strftime("%Y-%m-%d"),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": peak,
    }


def _sift(**extract: Any) -> ReconstructConfig:
    """SIFT and our network for it."""
    return ReconstructConfig(ExtractConfig("sift", **extract), matcher=MatcherConfig(features="sift"), pictures=False)


def room_model(folder: Path) -> Workspace:
    """The rendered room, reconstructed in a folder."""
    work = Workspace(folder / "work")
    write_images(folder / "images", render(IMAGES))
    reconstruct(folder / "images", work, _sift(max_keypoints=2000, resize=None))
    return work


def measure_room() -> dict[str, Any]:
    """How much of the true surface is found, and how much of what is found is true."""
    views, found = render(IMAGES), {"images": IMAGES}
    with tempfile.TemporaryDirectory() as folder:
        work = room_model(Path(folder))
        with measured(found):
            cloud = densify(work, Path(folder) / "points.ply", DenseConfig(longer_side=max(SIZE)))
        points = _aligned(work, cloud)
    surface = np.concatenate([_surface(view) for view in views])  # (S, 3), all that any image sees
    size = float(np.ptp(surface, axis=0).max())
    limit = WITHIN * size
    near_points = cKDTree(points).query(surface, distance_upper_bound=limit)[0] <= limit
    near_surface = cKDTree(surface).query(points, distance_upper_bound=limit)[0] <= limit
    return {
        **found,
        "points": len(points),
        "size_m": size,
        "of_surface": float(near_points.mean()),
        "of_points": float(near_surface.mean()),
    }


def _surface(view: Any) -> np.ndarray:
    """(S, 3) where the rays of every other pixel of every other row meet the room."""
    inverse = see(_room(), view.truth).inverse_depth[::EVERY, ::EVERY]
    y, x = np.nonzero(inverse > 0)
    pixels = EVERY * np.column_stack([x, y]).astype(np.float64)
    return np.asarray(view.truth.lift(pixels, 1 / inverse[y, x]))


def _aligned(work: Workspace, cloud: Cloud) -> np.ndarray:
    """(N, 3) in metres: after the similarity that takes the cameras of the model to the true ones."""
    pycolmap = quiet_pycolmap("benchmarks/dense.py")
    model = read_model(work.model)
    true = {view.name: view.truth.centre for view in render(IMAGES)}
    images = [model.image(number) for number in model.reg_image_ids()]
    found = pycolmap.estimate_sim3d(
        np.array([image.projection_center() for image in images]), np.array([true[image.name] for image in images])
    )
    return cloud.points @ found.matrix()[:, :3].T + found.matrix()[:, 3]


def measure_images(images: Path, work: Path, longer_side: int, picture: Path | None) -> dict[str, Any]:
    """A sparse model of a folder of images, and the time, memory and number of its dense points."""
    found: dict[str, Any] = {"name": images.parent.name if images.name == "images" else images.name}
    space = Workspace(work)
    reconstruct(images, space, _sift())
    with measured(found):
        cloud = densify(space, work / "points.ply", DenseConfig(longer_side=longer_side))
    model = read_model(space.model)
    if picture is not None:
        draw(picture, cloud, model)
    return {**found, "images": model.num_reg_images(), "longer_side": longer_side, "points": len(cloud)}


def draw(path: Path, cloud: Cloud, model: Any, width: int = 1100, height: int = 700) -> None:
    """The cloud as seen from a little beside its middle camera: nearer points hide those behind."""
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: str(image.name))
    pose = images[len(images) // 2].cam_from_world().matrix()
    local = cloud.points @ pose[:, :3].T + pose[:, 3]
    depth = np.median(local[:, 2])
    angle = np.deg2rad(12)
    turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    local = (local - [0, 0, depth]) @ turn.T + [0, 0, 1.1 * depth]
    camera = model.camera(images[0].camera_id)
    focal = camera.mean_focal_length() * width / camera.width
    order = np.argsort(-local[:, 2])  # far ones first: near ones are painted over them
    local, colours = local[order], cloud.colours[order]
    x = np.rint(focal * local[:, 0] / local[:, 2] + width / 2).astype(int)
    y = np.rint(focal * local[:, 1] / local[:, 2] + height / 2).astype(int)
    canvas = np.full((height, width, 3), NIGHT, np.uint8)
    for dy in (0, 1):
        for dx in (0, 1):
            inside = (local[:, 2] > 0) & (x + dx >= 0) & (x + dx < width) & (y + dy >= 0) & (y + dy < height)
            canvas[y[inside] + dy, x[inside] + dx] = colours[inside]
    cv2.imwrite(str(path), canvas[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])


def section(found: dict[str, Any]) -> Result:
    """The figures as a section of docs/benchmarks.md."""
    header = ("scene", "images", "longer side", "points", "CPU s, one thread", "peak MB")
    rows = []
    for name, row in found.items():
        shares = [f"{100 * row[key]:.1f} %" if key in row else "–" for key in ("of_surface", "of_points")]
        numbers = [f"{row[key]:,.0f}" for key in ("points", "cpu_seconds", "peak_mb")]
        rows.append((name, f"{row['images']}", f"{row.get('longer_side', max(SIZE))}", *numbers, *shares))
    table = Table((*header, "of the surface", "of the points"), tuple(rows))
    when = ", ".join(dict.fromkeys(row["date"] for row in found.values() if "date" in row))
    return Result(
        "dense", {"dense": found}, list(found.values()), "scenes", [table], f"{NOTE} {when}".strip(), {}, 1, 0
    )


def write_docs(path: Path, found: dict[str, Any]) -> None:
    """Put the table between its marks."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    (table,) = section(found).tables
    path.write_text("\n".join([f"{before}{BEGIN}", "", table.markdown(), "", f"{END}{after}"]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, metavar="RESULTS", help="JSON file; scenes that it has are not measured")
    parser.add_argument("--images", type=Path, metavar="DIR", help="a folder of images to measure besides")
    parser.add_argument("--work", type=Path, metavar="WORK", help="its work folder, which is kept")
    parser.add_argument("--resize", type=int, default=1024, metavar="LONGER_SIDE")
    parser.add_argument("--picture", type=Path, metavar="FILE.jpg", help="of its dense points")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FILE",
        help="put the figures into docs/dense.md, and beside it what is for docs/benchmarks.md",
    )
    options = parser.parse_args()
    if (options.images is None) != (options.work is None):
        parser.error("--images and --work go together")
    torch.set_num_threads(1)
    found = json.loads(options.results.read_text()) if options.results.is_file() else {}
    if "rendered room" not in found:
        found["rendered room"] = measure_room()
        options.results.write_text(json.dumps(found, indent=1))
    if options.images is not None:
        row = measure_images(options.images, options.work, options.resize, options.picture)
        found.setdefault(row["name"], row)
        options.results.write_text(json.dumps(found, indent=1))
    print(section(found).text())
    if options.docs is not None:
        write_docs(options.docs, found)
        section(found).save(options.docs.parent / MEASURED / "dense.json")


if __name__ == "__main__":
    main()
