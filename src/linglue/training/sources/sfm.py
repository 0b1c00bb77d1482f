"""Real image sets reconstructed once by COLMAP: pairs with triangulated correspondences, and scenes with known poses.

    python -m linglue.training.sources.sfm IMAGES -o FOLDER [--export-pose-scene DIR]

A scene's folder holds settings.json, database.db, sparse/ (the model), undistorted/images/ and, when all is done,
scene.npz. A run that was interrupted is resumed: features, matches and the model are not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from linglue.core.atomic import atomic_path, remove_leftovers
from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError, exit_code
from linglue.geometry.camera import View
from linglue.geometry.colmap import camera_from_colmap, pixel_from_colmap, quiet_pycolmap
from linglue.geometry.pose import Pose
from linglue.io.exif import UPRIGHT, read_exif
from linglue.io.images import IMAGE_SUFFIXES, Image, read_image
from linglue.io.views import write_view
from linglue.sfm.colmap_sift import extract_sift, match_sift
from linglue.sfm.map import MapRequest, map_incrementally
from linglue.sfm.sparse_model import write_model
from linglue.training.images.image_set import image_names
from linglue.training.sources.interface import ImageGroup
from linglue.training.sources.tracks import SfmScene, load_scene

SETTINGS = "settings.json"
SCENE = "scene.npz"
JPEG_QUALITY = 96  # of undistorted images


@dataclass(frozen=True)
class SfmConfig:
    """How a set of images is reconstructed. Change anything and it is another reconstruction."""

    max_features: int = 8192
    max_image_size: int = 1600  # pixels, of feature extraction
    sequential: bool = False  # match images with their neighbours in the order of names only: long videos
    one_camera: bool | None = None  # all images by one camera and lens; None: if all are of one size
    max_error: float = 2.0  # pixels: observations that reproject worse are dropped
    seed: int = 0


def reconstruct(images: Path, folder: Path, config: SfmConfig | None = None, threads: int = -1) -> SfmScene:
    """Reconstruct the images of a folder into `folder`, or load what is there; with one thread it is repeatable.

    Args:
        images: folder of one scene.
        folder: where the reconstruction goes.
        config: of the reconstruction.
        threads: of COLMAP.
    """
    config = config or SfmConfig()
    names = image_names(images, at_least=3)
    _claim(folder, names, config)
    remove_leftovers(folder)
    if not (folder / SCENE).exists():
        _detect(images, folder, names, config, threads)
        _match(folder, config, threads)
        model = _map(images, folder, config, threads)
        _undistort(images, folder, model, threads)
        _scene(folder, images.resolve().name, config.max_error).save(folder / SCENE)
    return load_scene(folder / SCENE)


def _claim(folder: Path, names: list[str], config: SfmConfig) -> None:
    """Create the folder, or make sure that it belongs to the same images and settings."""
    settings = {"images": names, **asdict(config)}
    file = folder / SETTINGS
    if file.exists():
        known = json.loads(file.read_text())
        differing = [name for name in settings if known.get(name) != settings[name]]
        if differing:
            raise LinGlueError(f"{folder}: holds a reconstruction with other {', '.join(differing)}, use a new folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as partial:
        partial.write_text(json.dumps(settings, indent=1))


def _pycolmap() -> Any:
    return quiet_pycolmap("reconstruction")


def _detect(images: Path, folder: Path, names: list[str], config: SfmConfig, threads: int) -> None:
    database = folder / "database.db"
    if database.exists():
        return
    pycolmap = _pycolmap()
    one_camera = config.one_camera
    if one_camera is None:
        one_camera = len({read_image(images / name).shape for name in names}) == 1
    mode = pycolmap.CameraMode.SINGLE if one_camera else pycolmap.CameraMode.AUTO
    with atomic_path(database) as partial:
        extract_sift(partial, images, names, mode, config.max_features, config.max_image_size, threads)


def _match(folder: Path, config: SfmConfig, threads: int) -> None:
    match_sift(folder / "database.db", config.sequential, threads=threads, seed=config.seed)


def _map(images: Path, folder: Path, config: SfmConfig, threads: int) -> Path:
    """The folder of the largest model."""
    target = folder / "sparse"
    if not target.exists():
        options = _pycolmap().IncrementalPipelineOptions()
        options.num_threads, options.random_seed, options.min_model_size = threads, config.seed, 3
        options.extract_colors = False  # nobody looks at them
        models = map_incrementally(MapRequest(folder / "database.db", options, len(image_names(images, at_least=3))))
        if not models:
            raise LinGlueError(f"{images}: cannot be reconstructed, expected overlapping images of one scene")
        write_model(models[0], target)
    return target


def _undistort(images: Path, folder: Path, model: Path, threads: int) -> None:
    target = folder / "undistorted"
    shutil.rmtree(target, ignore_errors=True)
    _pycolmap().undistort_images(target, model, images, jpeg_quality=JPEG_QUALITY, num_threads=threads)
    for path in (target / "images").rglob("*"):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            _drop_orientation(path)


def _drop_orientation(path: Path) -> None:
    """COLMAP ignores EXIF rotation but copies the tag: readers that apply it rotate the image under its points."""
    exif = read_exif(path)
    if exif is not None and exif.orientation != UPRIGHT:
        stored = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if stored is None:
            raise LinGlueError(f"{path}: not an image that can be decoded")
        cv2.imwrite(str(path), stored, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])


def _scene(folder: Path, name: str, max_error: float) -> SfmScene:
    """The undistorted model as arrays."""
    model = _pycolmap().Reconstruction(folder / "undistorted" / "sparse")
    numbers = sorted(model.reg_image_ids(), key=lambda number: model.image(number).name)
    points = model.points3D
    row = {point: k for k, point in enumerate(sorted(points))}
    world = np.array([points[point].xyz for point in row]).reshape(-1, 3)
    images, views, observations = [], [], []
    for index, number in enumerate(numbers):
        image = model.image(number)
        view = View(camera_from_colmap(image.camera), Pose.from_matrix(image.cam_from_world().matrix()))
        seen = image.get_observation_points2D()
        tracks = np.array([row[p.point3D_id] for p in seen], dtype=np.int64)
        xy = pixel_from_colmap(np.array([p.xy for p in seen], dtype=np.float64).reshape(-1, 2))
        error = np.linalg.norm(view.project(world[tracks])[0] - xy, axis=1)
        # Of several observations of one point in one image only the best stays.
        order = np.lexsort((error, tracks))
        first = order[np.unique(tracks[order], return_index=True)[1]]
        keep = first[(error[first] <= max_error) & view.camera.framed(xy[first])]
        images.append(image.name)
        views.append(view)
        observations.append((np.full(len(keep), index, dtype=np.int64), tracks[keep], xy[keep]))
    parts = [np.concatenate(column) for column in zip(*observations, strict=True)]
    return SfmScene(name, images, views, world, parts[0], parts[1], parts[2])


def export_pose_scene(folder: Path, target: Path) -> None:
    """Write a reconstruction in the layout of `linglue eval pose`: images/NAME and gt/NAME.txt.

    Args:
        folder: of `reconstruct`.
        target: the new scene.
    """
    scene = load_scene(folder / SCENE)
    for part in ("images", "gt"):
        (target / part).mkdir(parents=True, exist_ok=True)
    for name, view in zip(scene.images, scene.views, strict=True):
        flat = name.replace("/", "_")
        shutil.copyfile(folder / "undistorted" / "images" / name, target / "images" / flat)
        write_view(target / "gt" / f"{flat}.txt", view)


@dataclass(frozen=True)
class TracksConfig:
    """Which pairs of reconstructed scenes are drawn."""

    folders: tuple[str, ...]  # of finished reconstructions
    min_tracks: int = 150  # points both images observe; our keypoints meet a fraction of them
    overlap: tuple[float, float] = (0.0, 0.8)  # these, by those of the image that observes fewer
    radius: float = 1.5  # pixels around an observation in which a keypoint is that observation


class SfmSource:
    """Draws pairs of images of reconstructed scenes. Needs no images to be given, and no pycolmap."""

    def __init__(self, config: TracksConfig) -> None:
        self.config = config
        self._scenes: list[tuple[Path, SfmScene, list[tuple[int, int]]]] = []
        for folder in map(Path, config.folders):
            scene = load_scene(folder / SCENE)
            pairs = self._pairs(scene)
            if pairs:
                self._scenes.append((folder, scene, pairs))
        if not self._scenes:
            raise LinGlueError(
                f"{len(config.folders)} reconstructions hold no pair of images with {config.min_tracks} common points "
                f"and an overlap in {config.overlap}"
            )

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn: the reconstructions themselves, too."""
        return {**asdict(self.config), "scenes_sha256": [file_sha256(f / SCENE) for f, _, _ in self._scenes]}

    def _pairs(self, scene: SfmScene) -> list[tuple[int, int]]:
        shared = scene.shared_tracks()
        fewer = np.minimum.outer(np.diag(shared), np.diag(shared))
        overlap = shared / np.maximum(fewer, 1)
        low, high = self.config.overlap
        fit = (shared >= self.config.min_tracks) & (overlap >= low) & (overlap <= high)
        return [(int(i), int(j)) for i, j in np.argwhere(fit) if i != j]

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One pair; every scene is as likely as any other. `images` are not used."""
        folder, scene, pairs = self._scenes[int(rng.integers(len(self._scenes)))]
        return load_pair(folder, scene, *pairs[int(rng.integers(len(pairs)))], self.config.radius)


def load_pair(folder: Path, scene: SfmScene, zero: int, one: int, radius: float = 1.5) -> ImageGroup:
    """Read two undistorted images of a reconstruction, with what it knows about them.

    Args:
        folder: of the reconstruction.
        scene: what is known about it.
        zero: number of the first image.
        one: of the second.
        radius: pixels within which a keypoint is a point of the model.
    """
    numbers, images = (zero, one), []
    for number in numbers:
        path, size = folder / "undistorted" / "images" / scene.images[number], scene.views[number].camera.size
        images.append(read_image(path))
        if images[-1].shape[:2] != (size.height, size.width):
            raise LinGlueError(f"{path}: image is not {size.width}x{size.height} as reconstructed, remove {folder}")
    return ImageGroup(
        images,
        [(0, 1)],
        lambda a, b: scene.mapper(numbers[a], numbers[b], radius),
        shows=frozenset({f"images:{scene.name}"}),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m linglue.training.sources.sfm", description="Reconstruct a set of images."
    )
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images of one scene")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where it is kept")
    parser.add_argument(
        "--export-pose-scene", type=Path, metavar="DIR", help="also write a scene for linglue eval pose"
    )
    parser.add_argument("--sequential", action="store_true", help="match neighbours in the order of names only: videos")
    parser.add_argument("--threads", type=int, default=-1, metavar="N", help="all cores unless given; 1 is repeatable")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(max(1, options.threads))

    def work() -> None:
        config = SfmConfig(sequential=options.sequential, seed=options.seed)
        scene = reconstruct(options.images, options.output, config, options.threads)
        if options.export_pose_scene is not None:
            export_pose_scene(options.output, options.export_pose_scene)
        found = len(image_names(options.images, at_least=3))
        print(
            f"{options.output}: {len(scene.images)} of {found} images, {len(scene.points)} points, "
            f"{len(scene.xy)} observations"
        )

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
