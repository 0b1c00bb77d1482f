"""From matches in a COLMAP database to a sparse model: geometric verification, a mapper, a robust last refinement.

A mapper is a function `mapper(MapRequest) -> list[pycolmap.Reconstruction]`. Other packages add theirs under the
entry-point group `linglue.mappers`, or are named as `package:function`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.core.progress import progress
from linglue.core.registry import Registry
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.colmap.database import check_database, open_database, read_images

if TYPE_CHECKING:
    import pycolmap

MAPPERS = Registry(
    "mapper",
    "linglue.mappers",
    {"incremental": "linglue.sfm.map:map_incrementally", "global": "linglue.sfm.map:map_globally"},
    takes="MapRequest",
)

MIN_MATCHES = 15  # verified matches of a pair that counts
MIN_MODEL_SIZE = 3  # images of a further model that is worth reporting
POLL = 0.2  # seconds between two looks at how far the verification is

# The mappers minimise squared errors, so that each wrong match pulls at the cameras. Rounds with a robust loss and a
# tighter limit after them took a quarter off the camera errors of entry-P10 (EPFL) and a third off the pixel error.
REFINEMENT_ROUNDS = 5
ROBUST_SCALE = 0.5  # pixels, of the Cauchy loss
MAX_ERROR = 3.0  # pixels: observations that reproject worse are dropped

_PURPOSE = "a 3D model"


@dataclass(frozen=True)
class MappingConfig:
    """How a model is made. The same seed with one thread gives the same model; threads change its last digits."""

    mapper: str = "incremental"  # a name of MAPPERS, or package:function
    threads: int = -1  # -1: as many as there are cores
    seed: int = 0

    def __post_init__(self) -> None:
        MAPPERS.get(self.mapper)
        if self.threads != -1 and self.threads < 1:
            raise LinGlueError(f"threads is {self.threads}, expected at least 1, or -1 for all cores")
        if not 0 <= self.seed < 2**31:
            raise LinGlueError(f"seed is {self.seed}, expected 0 to {2**31 - 1}")


@dataclass(frozen=True, eq=False)
class Mapped:
    """The largest model, its points not coloured yet, and the numbers of images in the models beside it."""

    model: pycolmap.Reconstruction
    smaller: tuple[int, ...]


def verify_geometry(database: Path, config: MappingConfig) -> None:
    """Add the geometry of each matched pair and the matches that obey it. Pairs that have one already are skipped.

    Args:
        database: COLMAP's, changed in place.
        config: its threads and seed.
    """
    check_database(database)
    pycolmap = quiet_pycolmap(_PURPOSE)
    verifier, pairing = pycolmap.GeometricVerifierOptions(), pycolmap.ExistingMatchedPairingOptions()
    options, token = pycolmap.TwoViewGeometryOptions(), pycolmap.CancellationToken()
    verifier.num_threads = config.threads
    options.ransac.random_seed = config.seed
    options.min_num_inliers = MIN_MATCHES
    with (
        closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection,
        progress(total=_count(connection, "matches"), desc="verification", unit="pair") as bar,
        ThreadPoolExecutor(1) as pool,  # COLMAP reports nothing, but its progress can be seen in the database
    ):
        work = pool.submit(pycolmap.geometric_verification, database, verifier, pairing, options, token)
        try:
            while not work.done():
                wait([work], timeout=POLL)
                bar.update(_count(connection, "two_view_geometries") - bar.n)
        except BaseException:
            token.cancel()
            raise
        work.result()


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def verified_matches(database: Path) -> dict[tuple[str, str], int]:
    """Number of verified matches of each pair that has any; pairs are sorted names."""
    pycolmap = quiet_pycolmap(_PURPOSE)
    with open_database(database) as opened:
        names = {image.image_id: name for name, image in read_images(opened).items()}
        pair_ids, counts = opened.read_two_view_geometry_num_inliers()
    found: dict[tuple[str, str], int] = {}
    for pair_id, count in zip(pair_ids, counts, strict=True):
        name0, name1 = sorted(names[number] for number in pycolmap.pair_id_to_image_pair(pair_id))
        if count:
            found[name0, name1] = count
    return dict(sorted(found.items()))


@dataclass(frozen=True, eq=False)
class MapRequest:
    """What a mapper gets."""

    database: Path  # COLMAP's, verified
    options: pycolmap.IncrementalPipelineOptions  # threads, seed, limits and cameras to keep; other mappers read these
    images: int
    start: Path | None = None  # folder of a model of some of the images, to continue from


Mapper = Callable[[MapRequest], "list[pycolmap.Reconstruction]"]


def build_model(database: Path, given: Collection[str], config: MappingConfig, start: Path | None = None) -> Mapped:
    """The sparse model of the images in a verified database; of several scenes the largest is kept.

    Args:
        database: COLMAP's.
        given: images whose intrinsics stay as they are.
        config: which mapper, and its threads and seed.
        start: folder of a model of some of these images, with the same ids, to continue from.
    """
    pycolmap = quiet_pycolmap(_PURPOSE)
    with open_database(database) as opened:
        images = read_images(opened)
        cameras = {camera.camera_id: camera for camera in opened.read_all_cameras()}
    fixed = {image.camera_id for name, image in images.items() if name in given}
    options = _options(config, len(images), fixed, refine=len(fixed) < len(cameras))
    mapper: Mapper = MAPPERS.get(config.mapper)
    models = mapper(MapRequest(database, options, len(images), start))
    models.sort(key=lambda model: model.num_reg_images(), reverse=True)
    if not models or not models[0].num_points3D():
        raise LinGlueError(f"{database}: {_why_no_model(len(images), verified_matches(database))}")
    for number in fixed & set(models[0].cameras):  # the global mapper cannot keep single cameras
        models[0].camera(number).params = cameras[number].params.tolist()
    with open_database(database) as opened:
        cache = pycolmap.DatabaseCache.create(opened, pycolmap.DatabaseCacheOptions(min_num_matches=MIN_MATCHES))
    _refine(cache, models[0], options)
    return Mapped(models[0], tuple(model.num_reg_images() for model in models[1:]))


def _estimate_focal_lengths(request: MapRequest) -> None:
    """Where a focal length is only a guess, find it from pairs: the global mapper needs calibrated ones."""
    with open_database(request.database) as opened:
        guessed = any(not camera.has_prior_focal_length for camera in opened.read_all_cameras())
    if guessed:
        pycolmap = quiet_pycolmap(_PURPOSE)
        options = pycolmap.ViewGraphCalibrationOptions()
        options.random_seed = request.options.random_seed
        pycolmap.calibrate_view_graph(request.database, options)


def _options(config: MappingConfig, images: int, fixed: set[int], refine: bool) -> pycolmap.IncrementalPipelineOptions:
    options = quiet_pycolmap(_PURPOSE).IncrementalPipelineOptions()
    options.num_threads, options.random_seed = config.threads, config.seed
    options.min_num_matches, options.min_model_size = MIN_MATCHES, MIN_MODEL_SIZE
    options.extract_colors = False  # COLMAP reads images without rotating them upright
    options.constant_cameras = fixed
    options.ba_refine_focal_length = options.ba_refine_extra_params = refine
    options.triangulation.ignore_two_view_tracks = images > 2  # else two images have no point
    return options


def map_incrementally(request: MapRequest) -> list[pycolmap.Reconstruction]:
    """Image after image, the largest model first; continues from a model that is there."""
    pycolmap = quiet_pycolmap(_PURPOSE)
    manager = pycolmap.ReconstructionManager()
    if request.start is not None:
        manager.read(request.start)
    with (
        open_database(request.database) as opened,
        progress(total=request.images, desc="model", unit="image") as bar,
    ):

        def show() -> None:
            bar.update(sum(model.num_reg_images() for model in _models(manager)) - bar.n)

        pipeline = pycolmap.IncrementalPipeline(request.options, opened, manager)
        steps = pycolmap.IncrementalPipelineCallback
        for step in (steps.INITIAL_IMAGE_PAIR_REG_CALLBACK, steps.NEXT_IMAGE_REG_CALLBACK):
            pipeline.add_callback(step.value, show)
        pipeline.run()
    return sorted(_models(manager), key=lambda model: model.num_reg_images(), reverse=True)


def map_globally(request: MapRequest) -> list[pycolmap.Reconstruction]:
    """All images at once: rotations, then positions and points together."""
    pycolmap, options = quiet_pycolmap(_PURPOSE), request.options
    _estimate_focal_lengths(request)
    own = pycolmap.GlobalPipelineOptions()
    for name in ("num_threads", "random_seed", "min_num_matches", "min_model_size"):
        setattr(own, name, getattr(options, name))
    own.mapper.bundle_adjustment.refine_focal_length = options.ba_refine_focal_length
    own.mapper.bundle_adjustment.refine_extra_params = options.ba_refine_extra_params
    manager = pycolmap.ReconstructionManager()
    with open_database(request.database) as opened, progress(desc="model", unit="step") as bar:
        pipeline = pycolmap.GlobalPipeline(own, opened, manager)
        pipeline.add_callback(pycolmap.GlobalPipelineCallback.MODEL_UPDATE_CALLBACK.value, bar.update)
        pipeline.run()
    return _models(manager)


def _models(manager: pycolmap.ReconstructionManager) -> list[pycolmap.Reconstruction]:
    return [manager.get(number) for number in range(manager.size())]


def _refine(
    cache: pycolmap.DatabaseCache, model: pycolmap.Reconstruction, options: pycolmap.IncrementalPipelineOptions
) -> None:
    """Adjust everything with a loss that wrong matches cannot sway, and drop what does not fit then."""
    pycolmap = quiet_pycolmap(_PURPOSE)
    options.mapper.filter_max_reproj_error = MAX_ERROR
    options.triangulation.complete_max_reproj_error = options.triangulation.merge_max_reproj_error = MAX_ERROR
    mapper_options, triangulation = options.get_mapper(), options.get_triangulation()
    adjustment = options.get_global_bundle_adjustment()
    adjustment.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    adjustment.ceres.loss_function_scale = ROBUST_SCALE
    mapper = pycolmap.IncrementalMapper(cache)
    mapper.begin_reconstruction(model)
    mapper.complete_and_merge_tracks(triangulation)
    mapper.retriangulate(triangulation)
    for _ in progress(range(REFINEMENT_ROUNDS), desc="refinement", unit="round"):
        mapper.adjust_global_bundle(mapper_options, adjustment)
        mapper.complete_and_merge_tracks(triangulation)
        mapper.filter_points(mapper_options)
    mapper.end_reconstruction(discard=False)
    model.update_point_3d_errors()


def _why_no_model(images: int, verified: dict[tuple[str, str], int]) -> str:
    good = sum(count >= MIN_MATCHES for count in verified.values())
    if good:
        found = f"{good} of their pairs match, but none from far enough apart to see depth"
    else:
        found = f"none of their pairs has {MIN_MATCHES} or more verified matches"
    return f"no model of {images} images: {found}; expected overlapping images of one scene"
