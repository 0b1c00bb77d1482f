"""Pairs of images with known relative poses, from the layouts that data sets come in.

our own      images/ and gt/IMAGE.txt (see `linglue.io.views`); pairs.txt, if there, lists the pairs
MegaDepth-1500, ScanNet-1500
             pairs_calibrated.txt or *_pairs_with_gt.txt: names, K of both images, pose 1_from_0; the images below
             the folder or its images/ (the lists of glue-factory and of SuperGlue)
ETH3D        images/dslr_images_undistorted and dslr_calibration_undistorted: pairs that share enough points
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from linglue.errors import LinGlueError
from linglue.evaluation.known_poses import ETH3D_IMAGES, ETH3D_MODEL, is_eth3d
from linglue.evaluation.store import Pair
from linglue.geometry.camera import Camera, View
from linglue.geometry.colmap import camera_from_colmap
from linglue.geometry.pose import Pose
from linglue.io.exif import upright_size
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.pair_list import read_pairs
from linglue.io.views import read_view
from linglue.sfm.sparse_model import read_model

MAX_GAP = 6  # pairs are at most this many images apart, unless a scene lists its own
MIN_SHARED = 500  # points that both images of an ETH3D pair see
LISTS = ("pairs_calibrated.txt", "*_pairs_with_gt.txt")
# Columns of a listed pair: two names, maybe two rotations, two K of 9, pose 1_from_0 as R and t or as a 4x4 matrix.
_COLUMNS = {32: (2, 12), 36: (2, 16), 38: (4, 16)}


@dataclass(frozen=True, eq=False)
class PosePair:
    """Two images of a scene and where they were taken.

    Args:
        pair: the images, in one folder.
        view0: camera and pose of image 0.
        view1: of image 1.
        scene: name in tables; empty: that of the pair's group.
    """

    pair: Pair
    view0: View
    view1: View
    scene: str = ""

    @property
    def one_from_zero(self) -> Pose:
        """The true relative pose, in the unit of the scene."""
        return self.view1.from_view(self.view0)


def load_scene(scene: Path, max_gap: int = MAX_GAP) -> list[PosePair]:
    """The pairs of a scene or data set and their cameras.

    Args:
        scene: folder in one of the layouts above.
        max_gap: in our own layout, pairs are all images at most this far apart in the order of their names, unless the
            scene has a file pairs.txt that lists them.
    """
    if max_gap < 1:
        raise LinGlueError(f"--max-gap is {max_gap}, expected at least 1")
    lists = [path for pattern in LISTS for path in sorted(scene.glob(pattern))]
    if lists:
        pairs = _listed(scene, lists[0])
    elif is_eth3d(scene):
        pairs = _eth3d(scene)
    else:
        pairs = _own(scene, max_gap)
    for pair in pairs:
        if np.linalg.norm(pair.one_from_zero.translation) < 1e-9:
            names = f"{pair.pair.image0.name} and {pair.pair.image1.name}"
            raise LinGlueError(f"{scene}: {names} were taken from one position, expected pairs with a baseline")
    return pairs


def _own(scene: Path, max_gap: int) -> list[PosePair]:
    for folder in (scene, scene / "images", scene / "gt"):
        if not folder.is_dir():
            raise LinGlueError(f"{folder}: no such folder, expected a scene with images/ and gt/")
    images = sorted(p for p in (scene / "images").iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
    if len(images) < 2:
        raise LinGlueError(f"{scene / 'images'}: holds {len(images)} images, expected at least 2")
    paths = {image.name: image for image in images}
    views = {name: read_view(scene / "gt" / f"{name}.txt") for name in paths}
    group = scene.resolve().name
    return [
        PosePair(Pair(group, paths[name0], paths[name1]), views[name0], views[name1])
        for name0, name1 in _chosen_pairs(scene, list(paths), max_gap)
    ]


def _chosen_pairs(scene: Path, names: list[str], max_gap: int) -> list[tuple[str, str]]:
    listed = scene / "pairs.txt"
    if not listed.is_file():
        return [(names[i], other) for i in range(len(names)) for other in names[i + 1 : i + 1 + max_gap]]
    pairs = read_pairs(listed)
    if not pairs:
        raise LinGlueError(f"{listed}: holds no pair, expected at least one")
    unknown = next((name for pair in pairs for name in pair if name not in names), None)
    if unknown is not None:
        raise LinGlueError(f"{listed}: {unknown!r} is no image of the scene, expected names in {scene / 'images'}")
    return pairs


def _listed(scene: Path, path: Path) -> list[PosePair]:
    """The pairs of MegaDepth-1500, ScanNet-1500 and others that come as one list."""
    pairs, name = [], scene.resolve().name
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) not in _COLUMNS:
            expected = ", ".join(map(str, _COLUMNS))
            raise LinGlueError(f"{path}:{number}: holds {len(words)} columns, expected {expected}")
        start, size = _COLUMNS[len(words)]
        if any(word not in ("0", "0.0") for word in words[2:start]):
            raise LinGlueError(f"{path}:{number}: images are rotated by {words[2:start]}, expected upright ones (0 0)")
        try:
            numbers = np.array(words[start:], dtype=np.float64)
        except ValueError as error:
            raise LinGlueError(f"{path}:{number}: {error}; expected numbers after the names") from error
        images = [_find_image(scene, word, path, number) for word in words[:2]]
        if images[0].parent != images[1].parent:
            raise LinGlueError(f"{path}:{number}: the images are in two folders, expected both in one")
        group = f"{name}/{images[0].parent.relative_to(scene).as_posix()}".removesuffix("/.")
        cameras = [Camera(upright_size(i), k) for i, k in zip(images, numbers[:18].reshape(2, 3, 3), strict=True)]
        zero = View(cameras[0], Pose(np.eye(3), np.zeros(3)))
        pairs.append(PosePair(Pair(group, *images), zero, View(cameras[1], _pose(numbers[18:], size)), name))
    if not pairs:
        raise LinGlueError(f"{path}: holds no pair, expected at least one")
    return pairs


def _pose(numbers: np.ndarray, size: int) -> Pose:
    """From 12 numbers, R and then t, or from the 16 of a matrix."""
    if size == 16:
        return Pose.from_matrix(numbers.reshape(4, 4)[:3])
    return Pose(numbers[:9].reshape(3, 3), numbers[9:])


def _find_image(scene: Path, name: str, path: Path, number: int) -> Path:
    found = next((folder / name for folder in (scene, scene / "images") if (folder / name).is_file()), None)
    if found is None:
        raise LinGlueError(f"{path}:{number}: {name} is neither in {scene} nor in its images/, expected an image")
    return found


def _eth3d(scene: Path) -> list[PosePair]:
    """All pairs whose images share at least MIN_SHARED points."""
    model = read_model(scene / ETH3D_MODEL)
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
    seen = {image.name: {point.point3D_id for point in image.get_observation_points2D()} for image in images}
    views = {
        image.name: View(
            camera_from_colmap(model.camera(image.camera_id)), Pose.from_matrix(image.cam_from_world().matrix())
        )
        for image in images
    }
    group = scene.resolve().name
    paths = {name: scene / ETH3D_IMAGES / Path(name).name for name in seen}
    pairs = [
        PosePair(Pair(group, paths[name0], paths[name1]), views[name0], views[name1])
        for name0, name1 in combinations(seen, 2)
        if len(seen[name0] & seen[name1]) >= MIN_SHARED
    ]
    if not pairs:
        raise LinGlueError(f"{scene}: no two images share {MIN_SHARED} points, expected such pairs")
    return pairs
