"""Localizer: a sparse model and its features in memory, and the camera pose of one new image after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.progress import Stopwatch, progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_pixel, quiet_pycolmap
from linglue.io.colmap.model_files import check_model_files
from linglue.io.images import ImageSource
from linglue.localization.absolute_pose import PURPOSE, ModelPoints, PoseConfig, PoseEstimate, estimate_pose
from linglue.matcher import MAX_KEYPOINTS, RESIZE, Matcher
from linglue.sfm.cameras import DEFAULT_FOCAL, CameraConfig, assign_cameras
from linglue.sfm.retrieval import TOP, LoadFeatures, Retrieval
from linglue.sfm.sparse_model import read_model
from linglue.sfm.workspace import MODEL_FILES, Workspace
from linglue.types import Features, ImageSize

if TYPE_CHECKING:
    import pycolmap

SAME_POSITION = 0.01  # pixels by which keypoints of the model may differ from those of the features


@dataclass(frozen=True)
class LocalizeConfig:
    """How one image is localized. Its features are best taken as those of the map were."""

    max_keypoints: int = MAX_KEYPOINTS
    resize: int | None = RESIZE  # longer side; None: original
    tile: int | None = None
    top: int = TOP  # most similar images of the map that are matched
    pose: PoseConfig = field(default_factory=PoseConfig)

    def __post_init__(self) -> None:
        if self.top < 1:
            raise LinGlueError(f"top is {self.top}, expected at least 1")


@dataclass(frozen=True, eq=False)
class Localization(PoseEstimate):
    """Where an image was taken, or why that is not known.

    Example:
        >>> localizer.localize("new.jpg").cam_from_world  # doctest: +SKIP
    """

    retrieved: tuple[str, ...]  # images of the map it was matched with, most similar first
    timing: Mapping[str, float]  # seconds per stage


class Localizer:
    """A map in memory: nothing is read from disk or written to it while images are localized.

    It holds the features of all registered images: 2 bytes per descriptor entry and at most 28 more per keypoint,
    1.2 GB for 1000 images of 4096 SIFT keypoints; and a global descriptor per image where there are more than `top`,
    at most 65 kB each for SIFT.

    Example:
        >>> localizer = Localizer.from_work("WORK", Matcher.from_pretrained())  # doctest: +SKIP
        >>> localizer.localize("new.jpg").inliers  # doctest: +SKIP
    """

    def __init__(
        self,
        points: ModelPoints,
        load: LoadFeatures,
        matcher: Matcher,
        config: LocalizeConfig | None = None,
        retrieval: Retrieval | None = None,
    ) -> None:
        """`load` gives the features of an image in `points`, keypoints in the same order; it is called only here.

        Without a `retrieval` that has all these images one is built where it is needed.
        """
        self.points = points
        self.matcher = matcher
        self.config = config or LocalizeConfig()
        names = progress(sorted(points.shown), desc="map", unit="image", leave=False)
        self._packed = {name: _Packed.of(load(name)) for name in names}
        self._retrieval: Retrieval | None = None
        if len(self._packed) > self.config.top:
            if retrieval is None or not self._packed.keys() <= set(retrieval.names):
                retrieval = Retrieval.build(self._packed, self._features)
            self._retrieval = retrieval

    def __getstate__(self) -> dict[str, Any]:
        """A map travels to other processes without its matcher: there it gets one of theirs."""
        return {**self.__dict__, "matcher": None}

    @classmethod
    def from_work(cls, folder: str | Path, matcher: Matcher, config: LocalizeConfig | None = None) -> Localizer:
        """The map that `linglue reconstruct` left in a work folder.

        Args:
            folder: the work folder.
            matcher: for its kind of features.
            config: how images are localized.

        Example:
            localizer = Localizer.from_work("WORK", Matcher.from_pretrained())
        """
        work = Workspace(Path(folder))
        check_map(work)
        model = read_model(work.model)
        retrieval = Retrieval.load(work.retrieval) if work.retrieval.is_file() else None
        with work.features() as store:

            def load(name: str) -> Features:
                features = store.get(name)
                if features.kind != matcher.kind:
                    raise LinGlueError(
                        f"{store.path}: features are of kind {features.kind!r}, the matcher is for {matcher.kind!r}"
                    )
                _check_same_keypoints(work, model.find_image_with_name(name), features)
                return features

            return cls(ModelPoints.of(model), load, matcher, config, retrieval)

    def localize(
        self, query: ImageSource | Features, camera: pycolmap.Camera | None = None, refine_camera: bool = False
    ) -> Localization:
        """The pose of an image.

        Args:
            query: a path, an array or tensor, or features that were extracted before.
            camera: COLMAP's, of the image's size; without, its intrinsics are found together with the pose, beginning
                with the EXIF of a path.
            refine_camera: the intrinsics of `camera` are a first guess; else they are kept as they are.

        Returns:
            The pose; for an image that cannot be localized a reason instead. One that cannot be used raises a
            LinGlueError.
        """
        config, watch = self.config, Stopwatch(self.matcher.device)
        with watch.stage("extract"):
            if isinstance(query, Features):
                features = query
            else:
                features = self.matcher.extract(query, config.max_keypoints, config.resize, tile=config.tile)
        if camera is None:
            camera, refine_camera = _guess_camera(query, features.image_size), True
        if (camera.width, camera.height) != features.image_size:
            raise LinGlueError(
                f"camera is of {camera.width}x{camera.height} pixels, expected the image's size "
                f"{features.image_size.width}x{features.image_size.height}"
            )
        with watch.stage("retrieve"):
            retrieved = self._retrieve(features)
        with watch.stage("match"):
            found = self.matcher.match_batch([(features, self._features(name)) for name in retrieved])
        with watch.stage("pose"):
            matches = zip(retrieved, (match.indices for match in found), strict=True)
            estimate = estimate_pose(self.points, features.keypoints, matches, camera, refine_camera, config.pose)
        return Localization(**vars(estimate), retrieved=tuple(retrieved), timing=dict(watch.seconds))

    def _features(self, name: str) -> Features:
        return self._packed[name].features()

    def _retrieve(self, features: Features) -> list[str]:
        """The most similar images of the map; all in a small one, none for an image without keypoints."""
        if not len(features):
            return []
        if self._retrieval is None:
            return list(self._packed)
        similar = self._retrieval.nearest(self._retrieval.describe(features), len(self._retrieval.names))
        return [name for name, _ in similar if name in self._packed][: self.config.top]


@dataclass(frozen=True, eq=False)
class _Packed:
    """Features whose descriptors take half the memory; they come from files of float16, so nothing is lost."""

    bare: Features  # with descriptors of length 0
    descriptors: NDArray[np.float16]  # (N, D)

    @classmethod
    def of(cls, features: Features) -> _Packed:
        bare = replace(features, descriptors=np.zeros((len(features), 0), np.float32))
        return cls(bare, features.descriptors.astype(np.float16))

    def features(self) -> Features:
        return replace(self.bare, descriptors=self.descriptors.astype(np.float32))


def check_map(work: Workspace) -> None:
    """Refuse a folder in which `linglue reconstruct` has not finished, or whose model is damaged."""
    for path in (work.features_file, work.model):
        if not path.exists():
            raise LinGlueError(f"{work.folder}: holds no {path.name}, expected a folder of `linglue reconstruct`")
    for name in MODEL_FILES:
        if not any((work.model / name).with_suffix(suffix).is_file() for suffix in (".bin", ".txt")):
            raise LinGlueError(f"{work.model}: holds no {name}, expected a model of COLMAP")
    check_model_files(work.model)


def _check_same_keypoints(work: Workspace, image: pycolmap.Image, features: Features) -> None:
    """A model knows keypoints by their number only: other features would give wrong points without a word."""
    same = image.num_points2D() == len(features)
    if same:
        rows = image.get_observation_point2D_idxs()
        observed = np.array([point.xy for point in image.get_observation_points2D()]).reshape(-1, 2)
        same = bool(np.all(np.abs(observed - colmap_from_pixel(features.keypoints[rows])) <= SAME_POSITION))
    if not same:
        raise LinGlueError(
            f"{work.model}: {image.name!r} has other keypoints than in {work.features_file.name}, expected a model "
            "made from these features: `linglue reconstruct` makes it again"
        )


def _guess_camera(query: ImageSource | Features, size: ImageSize) -> pycolmap.Camera:
    """From the EXIF of a file where it says something, else from the size alone."""
    config = CameraConfig(sharing="image")
    if isinstance(query, str | Path):
        return assign_cameras({str(query): Path(query)}, {str(query): size}, config).by_name[str(query)]
    pycolmap = quiet_pycolmap(PURPOSE)
    return pycolmap.Camera.create_from_model_name(
        pycolmap.INVALID_CAMERA_ID, config.model, DEFAULT_FOCAL * max(size), size.width, size.height
    )
