"""What there is to see in a work folder, also while `linglue reconstruct` works in it; nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linglue.errors import LinGlueError
from linglue.geometry.colmap import pixel_from_colmap
from linglue.geometry.pose import Pose
from linglue.io.images import Image, read_image, shrink
from linglue.io.pair_list import Pair
from linglue.io.poses import read_poses
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import MODEL_FILES, Workspace
from linglue.types import FloatArray
from linglue.viz.scene import Scene

if TYPE_CHECKING:
    import pycolmap

_NONE_YET = Scene.empty()
Version = tuple[tuple[str, int, int], ...]  # name, time of change and size of every file that is shown


@dataclass(frozen=True, eq=False)
class Contents:
    """All that is shown at once."""

    scene: Scene
    matched: Mapping[Pair, int]  # number of matches
    without_pose: Mapping[str, str]  # image → reason
    paths: Mapping[str, Path]  # image files that are there
    queries: Mapping[str, Pose] = field(default_factory=dict)  # localized images


@dataclass(frozen=True, eq=False)
class ImageMatches:
    """The matches of two images."""

    points0: FloatArray  # (K, 2) pixels
    points1: FloatArray  # (K, 2)
    scores: FloatArray  # (K,)


class WorkContents:
    """Reads a work folder again and again.

    Args:
        folder: of `linglue extract`, `match-pairs` or `reconstruct`.
        queries: a file of `linglue localize`, if localized images are to be shown.
        points: of the model that are shown at most; more are thinned.

    Example:
        >>> WorkContents(Path("work")).read().scene.names  # doctest: +SKIP
        ('a.jpg', 'b.jpg')
    """

    def __init__(self, folder: Path, queries: Path | None = None, points: int = 200_000) -> None:
        self.work, self.queries, self.points = Workspace(folder), queries, points
        if not self.work.features_file.is_file():
            raise LinGlueError(f"{folder}: holds no features.db, expected a folder of `linglue extract`")
        if points < 1:
            raise LinGlueError(f"points is {points}, expected at least 1")
        if queries is not None and not queries.is_file():
            raise LinGlueError(f"{queries}: no such file, expected poses of `linglue localize`")
        self._last_queries: tuple[Version, dict[str, Pose]] = ((), {})
        self._last: tuple[Version, pycolmap.Reconstruction, Scene] | None = None  # the model as it was read last

    def version(self) -> Version:
        """Changes when there is something new to see."""
        work = self.work
        files = [work.matches_file, work.matches_file.with_name(f"{work.matches_file.name}-wal"), work.summary]
        return _states(files + self._model_files() + ([self.queries] if self.queries else []))

    def read(self) -> Contents:
        """Everything as it is now; without a model yet, the scene is empty."""
        with self.work.features() as features:
            names, paths = features.names(), features.paths()
            current, counts = features.made_from(), features.counts()
        read = self._model()
        scene = _NONE_YET if read is None else read[1]
        reasons = {name: "no keypoints" for name, count in counts.items() if not count} | self._reasons()
        missing = [name for name in names if name not in set(scene.names)]
        unknown = "not among the images of the model" if scene.names else "no model yet"
        matched = {}
        if self.work.matches_file.is_file():
            with self.work.matches() as matches:
                matched = {pair: row.count for pair, row in matches.current(current).items()}
        return Contents(
            scene=scene,
            matched=matched,
            without_pose={name: reasons.get(name, unknown) for name in missing},
            paths={name: path for name, path in paths.items() if path.is_file()},
            queries=self._queries(),
        )

    def keypoints(self, name: str) -> tuple[FloatArray, NDArray[np.bool_]]:
        """(N, 2) pixels of an image, and (N,) which of them are points of the model."""
        read = self._model()
        image = None if read is None else read[0].find_image_with_name(name)
        if image is None:
            with self.work.features() as features:
                points = features.keypoints(name).keypoints
            return points, np.zeros(len(points), dtype=np.bool_)
        points = np.array([point.xy for point in image.points2D], dtype=np.float32).reshape(-1, 2)
        return pixel_from_colmap(points), np.array([point.has_point3D() for point in image.points2D], dtype=np.bool_)

    def matches(self, name0: str, name1: str) -> ImageMatches | None:
        """The matches of images name0 and name1; None where the pair was not matched."""
        pair = (min(name0, name1), max(name0, name1))
        if not self.work.matches_file.is_file():
            return None
        with self.work.features() as features, self.work.matches() as matches:
            if pair not in matches.current(features.made_from(), [pair]):
                return None
            indices, scores = matches.get(name0, name1)
            points0, points1 = (features.keypoints(name).keypoints for name in (name0, name1))
        return ImageMatches(points0[indices[:, 0]], points1[indices[:, 1]], scores)

    def _model(self) -> tuple[pycolmap.Reconstruction, Scene] | None:
        """The model, once all of its files are there; the same objects as long as they stay as they are."""
        now = _states(self._model_files())
        if len(now) < len(MODEL_FILES):
            return None
        if self._last is None or self._last[0] != now:
            model = read_model(self.work.model)
            self._last = now, model, Scene.of(model, self.points)
        return self._last[1:]

    def _queries(self) -> dict[str, Pose]:
        """The localized images; the same object as long as the file stays as it is."""
        now = () if self.queries is None else _states([self.queries])
        if self._last_queries[0] != now:
            self._last_queries = now, {} if self.queries is None or not now else read_poses(self.queries)
        return self._last_queries[1]

    def _model_files(self) -> list[Path]:
        return [self.work.model / name for name in MODEL_FILES]

    def _reasons(self) -> dict[str, str]:
        """Why images have no pose, as the last reconstruction found."""
        try:
            return dict(json.loads(self.work.summary.read_text(encoding="utf-8"))["reasons"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _states(files: Sequence[Path]) -> Version:
    """Of the files that are there."""
    found = []
    for file in files:
        with suppress(OSError):  # not there, or just being replaced
            state = file.stat()
            found.append((str(file), state.st_mtime_ns, state.st_size))
    return tuple(found)


def thumbnail(path: Path, longer_side: int) -> Image:
    """The image file `path`, with a longer_side small enough to be shown."""
    return shrink(read_image(path), longer_side)
