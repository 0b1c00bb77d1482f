"""Scenes for `linglue eval pose` out of folders of images: poses and intrinsics from full structure from motion.

    python benchmarks/pose_scenes.py IMAGES... -o DIR --work DIR [--models MODELS]

Each folder of images is reconstructed with ALIKED + LightGlue, the strongest matcher at hand, over all pairs. A scene
is kept when most of its images are registered and reproject well. Images are undistorted, so that K says all of a
camera. Pairs are chosen by overlap of the points in both views, whoever matched them, and by the angle between views.

    DIR/SCENE/images/*.jpg, gt/IMAGE.txt, pairs.txt, scene.json

Cameras, poses and pairs are kept in MODELS/SCENE, benchmarks/scenes unless given. A scene that is there is made from
them in a second: the same truth on every machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pycolmap

from linglue.errors import LinGlueError
from linglue.geometry.colmap import pixel_from_colmap
from linglue.io.images import IMAGE_SUFFIXES
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import CameraConfig
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.map import MappingConfig
from linglue.sfm.pairs import PairsConfig
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import Workspace

TOURIST = frozenset({"british_museum", "london_bridge", "piazza_sanmarco", "st_pauls"})  # every image its own camera
MIN_REGISTERED = 0.6  # share of the images
MIN_IMAGES = 4
MAX_ERROR = 1.2  # pixels, mean reprojection error of the model
FOCAL_RANGE = (0.4, 3.0)  # times the longer side: what real lenses have
MIN_OVERLAP = 0.15  # share of the points of either image that the other one can see
MAX_VIEW_ANGLE = 60.0  # degrees between the rays to a point, beyond which a surface hides it
MIN_VIEW_ANGLE = 1.0  # degrees, median: less says nothing about the direction of the baseline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, nargs="+", help="folders of images, one per scene")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the scenes")
    parser.add_argument("--work", type=Path, required=True, help="features, matches and models are kept here")
    parser.add_argument("--models", type=Path, default=Path(__file__).parent / "scenes", help="of earlier runs")
    parser.add_argument("--max-keypoints", type=int, default=4096)
    parser.add_argument("--max-images", type=int, default=10, help="of a scene, evenly spaced: videos have too many")
    options = parser.parse_args()
    for folder in options.images:
        try:
            print(f"{folder.name}: {make_scene(folder, options)}", flush=True)
        except LinGlueError as error:
            print(f"{folder.name}: left out ({error})", flush=True)


def make_scene(folder: Path, options: argparse.Namespace) -> str:
    """Reconstruct, judge and export one scene, or take what is known of it; returns what was done, in words."""
    known = options.models / folder.name
    images = _subset(folder, options.work / "images" / folder.name, options.max_images)
    if not known.is_dir() and (refused := _reconstruct(images, options.work / folder.name, known, options)):
        return f"left out ({refused})"
    target = options.output / folder.name
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary) / "known"
        shutil.copytree(known, model)
        (model / "points3D.txt").touch()
        pycolmap.undistort_images(Path(temporary) / "undistorted", model, images, num_threads=1)
        _export(Path(temporary) / "undistorted", target)
    shutil.copyfile(known / "pairs.txt", target / "pairs.txt")
    shutil.copyfile(known / "scene.json", target / "scene.json")
    record = json.loads((known / "scene.json").read_text(encoding="utf-8"))
    return "{pairs} pairs, {registered}/{images} images, {reprojection_error:.2f} px, {points} points".format(**record)


def _reconstruct(images: Path, work: Path, known: Path, options: argparse.Namespace) -> str:
    """Cameras, poses and pairs of a scene, into the folder `known`; returns why not, if they are not good enough."""
    name = known.name
    config = ReconstructConfig(
        extract=ExtractConfig(features="aliked", max_keypoints=options.max_keypoints),
        pairs=PairsConfig(method="exhaustive"),
        matcher=MatcherConfig("lightglue", "aliked"),
        cameras=CameraConfig(sharing="image" if name in TOURIST else "auto"),
        mapping=MappingConfig(threads=1),
        pictures=False,
    )
    summary = reconstruct(images, Workspace(work), config)
    model = read_model(Workspace(work).model)
    numbers = summary.model
    focal = [camera.mean_focal_length() / max(camera.width, camera.height) for camera in model.cameras.values()]
    said = f"{numbers.registered}/{numbers.images} images, {numbers.reprojection_error:.2f} px, {numbers.points} points"
    if numbers.registered < max(MIN_IMAGES, MIN_REGISTERED * numbers.images) or numbers.reprojection_error > MAX_ERROR:
        return said
    if min(focal) < FOCAL_RANGE[0] or max(focal) > FOCAL_RANGE[1]:
        return f"{said}, focal length {min(focal):.2f}..{max(focal):.2f}"
    with tempfile.TemporaryDirectory() as temporary:
        pycolmap.undistort_images(temporary, Workspace(work).model, images, num_threads=1)
        flat = pycolmap.Reconstruction(Path(temporary) / "sparse")
    chosen = [(a.name, b.name) for a, b in combinations(_views(flat), 2) if _good_pair(flat, a, b)]
    views = _views(model)
    record: dict[str, object] = {
        "registered": numbers.registered,
        "images": numbers.images,
        "pairs": len(chosen),
        "points": numbers.points,
        "reprojection_error": numbers.reprojection_error,
        "settings": dict(summary.settings),
    }
    known.mkdir(parents=True)
    write_text(known, views, [model.camera(number) for number in sorted({view.camera_id for view in views})])
    (known / "pairs.txt").write_text("".join(f"{a} {b}\n" for a, b in chosen), encoding="utf-8")
    (known / "scene.json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    return ""


def _views(model: pycolmap.Reconstruction) -> list[pycolmap.Image]:
    """The registered images by name."""
    return sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)


def write_text(folder: Path, views: Sequence[pycolmap.Image], cameras: Sequence[pycolmap.Camera]) -> None:
    """COLMAP's cameras.txt and images.txt, without points."""
    lines = [
        f"{c.camera_id} {c.model.name} {c.width} {c.height} {' '.join(map(repr, c.params.tolist()))}" for c in cameras
    ]
    (folder / "cameras.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = []
    for view in views:
        pose = view.cam_from_world()
        numbers = [*np.roll(pose.rotation.quat, 1).tolist(), *pose.translation.tolist()]  # w first
        lines += [f"{view.image_id} {' '.join(map(repr, numbers))} {view.camera_id} {view.name}", ""]
    (folder / "images.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _subset(folder: Path, target: Path, count: int) -> Path:
    """A folder with links to at most `count` of the images, evenly spaced in the order of their names."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for number in chosen:
        (target / paths[number].name).symlink_to(paths[number].resolve())
    return target


def _export(undistorted: Path, target: Path) -> None:
    """Images and cameras of COLMAP's folder of undistorted images."""
    model = pycolmap.Reconstruction(undistorted / "sparse")
    shutil.rmtree(target, ignore_errors=True)
    (target / "gt").mkdir(parents=True)
    for image in _views(model):
        camera, pose = model.camera(image.camera_id), image.cam_from_world()
        k = camera.calibration_matrix()
        k[:2, 2] = pixel_from_colmap(k[:2, 2])
        lines = [f"{camera.width} {camera.height}", "# K"]
        lines += [" ".join(map(repr, row)) for row in k.tolist()]
        lines += ["# R, t: camera from world"]
        lines += [" ".join(map(repr, row)) for row in pose.rotation.matrix().tolist()]
        lines += [" ".join(map(repr, pose.translation.tolist()))]
        (target / "gt" / f"{image.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (target / "images" / image.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(undistorted / "images" / image.name, target / "images" / image.name)


def _good_pair(model: pycolmap.Reconstruction, image0: pycolmap.Image, image1: pycolmap.Image) -> bool:
    """Whether each view can see enough of what the other sees, from a different place."""
    angles = []
    for image, other in ((image0, image1), (image1, image0)):
        seen = [point.point3D_id for point in image.get_observation_points2D()]
        points = np.array([model.point3D(number).xyz for number in seen])  # (N, 3)
        if len(points) == 0:
            return False
        rays = [points - view.projection_center() for view in (image, other)]
        cosine = (rays[0] * rays[1]).sum(axis=1) / (np.linalg.norm(rays[0], axis=1) * np.linalg.norm(rays[1], axis=1))
        angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))  # (N,)
        visible = _inside(model.camera(other.camera_id), other, points) & (angle <= MAX_VIEW_ANGLE)
        if visible.mean() < MIN_OVERLAP:
            return False
        angles.append(np.median(angle[visible]))
    return bool(min(angles) >= MIN_VIEW_ANGLE)


def _inside(camera: pycolmap.Camera, image: pycolmap.Image, points: np.ndarray) -> np.ndarray:
    """(N,) whether points (N, 3) of the world are in the picture."""
    local = points @ image.cam_from_world().rotation.matrix().T + image.cam_from_world().translation  # (N, 3)
    front = local[:, 2] > 1e-6
    pixels = (local[:, :2] / np.where(front, local[:, 2], 1)[:, None]) * [camera.focal_length_x, camera.focal_length_y]
    pixels += np.array([camera.principal_point_x, camera.principal_point_y])
    return front & (pixels >= 0).all(axis=1) & (pixels < [camera.width, camera.height]).all(axis=1)


if __name__ == "__main__":
    main()
