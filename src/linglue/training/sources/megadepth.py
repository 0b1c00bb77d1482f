"""Pairs of the real data set MegaDepth, in the layout that D2-Net, LoFTR and glue-factory share.

    ROOT/scene_info/*.npz                                        image_paths, depth_paths, intrinsics, poses, overlaps
    ROOT/Undistorted_SfM/SCENE/images/*.jpg                      named by image_paths
    ROOT/phoenix/S6/zl548/MegaDepth_v1/SCENE/dense0/depths/*.h5  named by depth_paths, key "depth", 0 where unknown
    ROOT/depth_undistorted/SCENE/*.h5                            the same in glue-factory's download

Depth comes from multi-view stereo: good to a few per mille on walls, unknown on sky, people and what lacks texture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.camera import Array, Camera, View
from linglue.geometry.pixels import resize_points
from linglue.geometry.pose import Pose
from linglue.io.images import Image, read_image, shrink
from linglue.training.sources.interface import Flags, ImageGroup, Points
from linglue.training.sources.megadepth_info import SceneInfo, read_scene_info
from linglue.types import ImageSize

GLUE_FACTORY_DEPTHS = "depth_undistorted"
EDGE = 0.05  # relative difference of neighbouring depths that is an edge, where a keypoint may belong to either side


@dataclass(frozen=True)
class MegaDepthConfig:
    """Which pairs are drawn, and how far depths are trusted."""

    root: str
    info: str = "scene_info"  # folder below root
    scenes: tuple[str, ...] = ()  # names of files in `info` without .npz; all of them if empty
    overlap: tuple[float, float] = (0.5, 1.0)  # share of common SfM points, as in the scene_info files
    pairs_per_scene: int = 100  # and epoch
    longer_side: int = 1024  # images are shrunk to it
    tolerance: float = 0.05  # relative difference of depths that are the same


class PairIndex(NamedTuple):
    """A pair of the data set."""

    scene: int
    image0: int
    image1: int


class MegaDepthSource:
    """Draws pairs of images with depth. Needs no images to be given."""

    def __init__(self, config: MegaDepthConfig) -> None:
        self.config = config
        low, high = config.overlap
        folder = Path(config.root) / config.info
        if not folder.is_dir():
            raise LinGlueError(
                f"{folder}: no such folder, expected MegaDepth with Undistorted_SfM, depths and scene_info"
            )
        files = [folder / f"{name}.npz" for name in config.scenes] or sorted(folder.glob("*.npz"))
        for file in files:
            if not file.is_file():
                raise LinGlueError(f"{file}: no such scene_info file")
        self._scenes: list[SceneInfo] = []
        self._pairs: list[NDArray[np.int64]] = []
        for scene in map(read_scene_info, files):
            chosen = scene.pairs[(scene.overlaps >= low) & (scene.overlaps <= high)]
            if len(chosen):
                self._scenes.append(scene)
                self._pairs.append(chosen)
        if not self._scenes:
            raise LinGlueError(f"{folder}: no pair with an overlap in [{low}, {high}] in {len(files)} scene_info files")

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn, but for the contents of the data set."""
        return {**asdict(self.config), "files": [scene.name for scene in self._scenes]}

    def epoch(self, seed: int) -> list[PairIndex]:
        """The pairs of one epoch in random order: at most `pairs_per_scene` of every scene, none twice."""
        rng = np.random.default_rng(seed)
        chosen = []
        for number, pairs in enumerate(self._pairs):
            rows = rng.permutation(len(pairs))[: self.config.pairs_per_scene]
            chosen += [PairIndex(number, *_either_way(pairs[row], rng)) for row in rows]
        return [chosen[i] for i in rng.permutation(len(chosen))]

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One pair; every scene is as likely as any other, as in an epoch. `images` are not used."""
        scene = int(rng.integers(len(self._scenes)))
        pair = self._pairs[scene][rng.integers(len(self._pairs[scene]))]
        return self.load(PairIndex(scene, *_either_way(pair, rng)))

    def load(self, index: PairIndex) -> ImageGroup:
        """Read the images and depths of a pair."""
        scene = self._scenes[index.scene]
        image0, view0 = self._view(scene, index.image0)
        image1, view1 = self._view(scene, index.image1)
        tolerance = self.config.tolerance
        # The parts of one reconstruction share a scene folder; their images may show the same thing.
        folder = PurePosixPath(scene.images[index.image0] or "").parent
        views = (view0, view1)
        return ImageGroup(
            [image0, image1],
            [(0, 1)],
            lambda a, b: StereoMapper(views[a], views[b], tolerance),
            shows=frozenset({f"megadepth:{folder}"}),
        )

    def _view(self, scene: SceneInfo, number: int) -> tuple[Image, DepthView]:
        root = Path(self.config.root)
        image_path = root / str(scene.images[number])
        depth = _read_depth(root, str(scene.depths[number]), image_path)
        image = read_image(image_path)
        # K is for the size of the depth map; the image may be larger by some factor.
        if abs(image.shape[1] / image.shape[0] * depth.shape[0] / depth.shape[1] - 1) > 0.02:
            sizes = [f"{shape[1]}x{shape[0]}" for shape in (image.shape, depth.shape)]
            raise LinGlueError(f"{image_path}: image is {sizes[0]}, its depth map {sizes[1]}; expected the same shape")
        image = shrink(image, self.config.longer_side)
        camera = Camera(ImageSize(depth.shape[1], depth.shape[0]), scene.intrinsics[number])
        camera = camera.resized(ImageSize(image.shape[1], image.shape[0]))
        return image, DepthView(View(camera, Pose.from_matrix(scene.poses[number])), depth)


def _either_way(pair: NDArray[np.int64], rng: np.random.Generator) -> tuple[int, int]:
    first = int(rng.integers(2))
    return int(pair[first]), int(pair[1 - first])


def _read_depth(root: Path, named: str, image: Path) -> NDArray[np.float32]:
    """(H, W) from the file that scene_info names, or glue-factory's for the image; 0 where unknown."""
    path = root / named
    if not path.is_file():
        path = root / GLUE_FACTORY_DEPTHS / image.parent.parent.name / f"{image.stem}.h5"
    if not path.is_file():
        raise LinGlueError(f"{root / named}: no such depth file, nor {path}")
    try:
        with h5py.File(path, "r") as file:
            depth = np.asarray(file["depth"], dtype=np.float32)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise LinGlueError(f"{path}: not an HDF5 file with an array called depth") from error
    if depth.ndim != 2 or min(depth.shape) < 2:
        raise LinGlueError(f"{path}: depth has shape {depth.shape}, expected (H, W)")
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(0))


@dataclass(frozen=True, eq=False)
class DepthView:
    """A view and its depth map, which may be of another size than its image."""

    view: View
    depth_map: NDArray[np.float32]  # (h, w), 0 where unknown

    def depth_at(self, pixels: Array) -> Array:
        """(N,) depth between pixels; NaN where one of the four around is unknown, or they lie across an edge."""
        height, width = self.depth_map.shape
        scale = np.array([width, height]) / self.view.camera.size
        at = np.clip(resize_points(pixels, scale), 0, [width - 1, height - 1])
        low = np.minimum(np.floor(at).astype(np.int64), [width - 2, height - 2])
        corners = np.stack([self.depth_map[low[:, 1] + y, low[:, 0] + x] for y in (0, 1) for x in (0, 1)], axis=1)
        x, y = (at - low).T
        weights = np.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y], axis=1)
        known = (corners > 0).all(axis=1) & (np.ptp(corners, axis=1) < EDGE * corners.min(axis=1))
        inverse = 1 / np.where(known[:, None], corners, 1.0).astype(np.float64)  # linear in the pixel on any plane
        return np.where(known, 1 / (weights * inverse).sum(axis=1), np.nan)


@dataclass(frozen=True, eq=False)
class StereoMapper:
    """Maps points of view a into view b by the depth under them; occluded if b sees something closer there."""

    a: DepthView
    b: DepthView
    tolerance: float

    def __call__(self, points: Points) -> tuple[Points, Flags]:
        start: Array = np.asarray(points, dtype=np.float64)
        depth = self.a.depth_at(start)
        known = np.isfinite(depth) & self.a.view.camera.framed(start)
        mapped, expected = self.b.view.project(self.a.view.lift(start, np.where(known, depth, 1.0)))
        framed = known & self.b.view.camera.framed(mapped)
        seen = self.b.depth_at(np.where(framed[:, None], mapped, 0.0))
        # Where b should see the point and instead sees something farther, one of the two depths is wrong.
        ratio = np.where(framed, np.nan_to_num(seen, nan=np.inf) / np.where(framed, expected, 1.0), 1.0)
        visible = framed & (np.abs(ratio - 1) <= self.tolerance)
        mapped[~known | (framed & (ratio > 1 + self.tolerance))] = np.nan
        return mapped, visible


def split_scenes(
    root: Path, training: Path | None, validation: Path | None, test: Path | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The scene_info files to learn from and those to validate on, by lists of scenes that have none in common.

    Args:
        root: of the data set.
        training: list of scenes, one name per line; without, all scenes that no other list names.
        validation: likewise; without, there are none.
        test: likewise; these are never drawn from.

    Returns:
        Names of files for `MegaDepthConfig.scenes`. A scene may have several: 0022 has 0022_0.1_0.3 in LoFTR's index.
    """
    files = sorted(p.stem for p in (root / MegaDepthConfig.info).glob("*.npz"))
    lists = {path: _read_list(path) for path in (training, validation, test) if path is not None}
    owner: dict[str, Path] = {}
    for path, names in lists.items():
        for name in names:
            if owner.setdefault(name, path) != path:
                raise LinGlueError(f"{path}: names scene {name}, which {owner[name]} names too; expected in one list")

    def chosen(path: Path | None) -> tuple[str, ...]:
        names = lists.get(path, set()) if path is not None else set()
        return tuple(file for file in files if file in names or file.split("_")[0] in names)

    listed = {file for path in lists for file in chosen(path)}
    learned = chosen(training) if training is not None else tuple(file for file in files if file not in listed)
    for given, found in ((training, learned), (validation, chosen(validation))):
        if given is not None and not found:
            raise LinGlueError(f"{given}: names no scene of {root / MegaDepthConfig.info}, expected names such as 0022")
    if files and not learned:
        raise LinGlueError(f"{root}: no scene is left to learn from, expected at least 1 that no other list names")
    return learned, chosen(validation)


def _read_list(path: Path) -> set[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: cannot be read, expected a list of scenes, one name per line") from error
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}
