"""COLMAP's own pipeline as its users have it: its CPU SIFT, its matcher, its mapper, all with their default options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import settings_hash
from linglue.core.progress import Stopwatch, progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.colmap.database import open_database, read_images
from linglue.sfm.colmap_sift import extract_sift, match_sift
from linglue.sfm.map import MapRequest, map_incrementally, verified_matches
from linglue.sfm.scan import ImageFile
from linglue.sfm.sparse_model import ModelStatistics, registered_names, write_model
from linglue.sfm.summary import Summary, read_summary, write_summary
from linglue.sfm.workspace import Workspace

if TYPE_CHECKING:
    import pycolmap

_PURPOSE = "COLMAP's own pipeline"


@dataclass(frozen=True)
class ColmapConfig:
    """What is chosen for COLMAP: as much as for the others, to be compared with them."""

    max_keypoints: int
    resize: int | None  # longer side; None: original
    match_threads: int  # in the matching, whose time is compared
    seed: int = 0


def reconstruct_by_colmap(
    images: Path,
    files: Sequence[ImageFile],
    cameras: Mapping[str, pycolmap.Camera],
    work: Workspace,
    config: ColmapConfig,
) -> Summary:
    """The largest model of the images, in `work.model`, unless it is there; its matching seconds exclude verification.

    Args:
        images: folder of the images.
        files: the images to use.
        cameras: known intrinsics by name, kept as they are; none: COLMAP's own guess, refined.
        work: where database and model lie.
        config: what is chosen for COLMAP.
    """
    made_from = settings_hash(
        {
            "colmap": quiet_pycolmap(_PURPOSE).__version__,
            "images": {file.name: file.sha256 for file in files},
            "cameras": {name: [c.model.name, *c.params.tolist()] for name, c in cameras.items()},
            "max_keypoints": config.max_keypoints,
            "resize": config.resize,
            "seed": config.seed,
        }
    )
    finished = _finished(work, made_from)
    if finished is not None:
        return finished
    watch = Stopwatch("cpu")
    names = [file.name for file in files]
    with progress(total=4, desc="colmap", unit="stage") as bar:
        with atomic_path(work.database) as database:
            with watch.stage("extract"):
                _extract(database, images, names, cameras, config)
            bar.update()
            with watch.stage("match"):
                match_sift(database, verify=False, threads=config.match_threads, seed=config.seed)
            bar.update()
            with watch.stage("verification"):
                _verify(database, config)
            bar.update()
        verified = verified_matches(work.database)
        with watch.stage("model"):
            models = _map(work.database, len(names), known=cameras.keys() >= set(names), config=config)
        bar.update()
    if not models:
        raise LinGlueError(f"{work.database}: COLMAP finds no model, {len(verified)} pairs have verified matches")
    write_model(models[0], work.model)
    summary = Summary(
        model=ModelStatistics.of(models[0], len(names)),
        matched_pairs=len(names) * (len(names) - 1) // 2,
        verified_pairs=len(verified),
        unregistered=tuple(sorted(set(names) - set(registered_names(models[0])))),
        smaller_models=tuple(model.num_reg_images() for model in models[1:]),
        seconds=dict(watch.seconds),
        settings={"made_from": made_from},
    )
    write_summary(work.summary, summary)
    return summary


def _finished(work: Workspace, made_from: str) -> Summary | None:
    if not (work.summary.is_file() and work.model.is_dir()):
        return None
    summary = read_summary(work.summary)
    return summary if summary.settings["made_from"] == made_from else None


def _extract(
    database: Path, images: Path, names: list[str], cameras: Mapping[str, pycolmap.Camera], config: ColmapConfig
) -> None:
    mode = quiet_pycolmap(_PURPOSE).CameraMode
    extract_sift(database, images, names, mode.PER_IMAGE if cameras else mode.AUTO, config.max_keypoints, config.resize)
    with open_database(database) as opened:
        for name, image in read_images(opened).items():
            if name not in cameras:
                continue
            camera = cameras[name]
            if (camera.width, camera.height) != image.size:
                raise LinGlueError(
                    f"{images / name}: COLMAP reads {image.size.width}x{image.size.height} pixels, its camera was "
                    f"calibrated for {camera.width}x{camera.height}; expected the same size"
                )
            known = camera.__copy__()
            known.camera_id = image.camera_id
            opened.update_camera(known)


def _verify(database: Path, config: ColmapConfig) -> None:
    pycolmap = quiet_pycolmap(_PURPOSE)
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = config.seed
    pycolmap.geometric_verification(database, two_view_geometry_options=options)


def _map(database: Path, images: int, known: bool, config: ColmapConfig) -> list[pycolmap.Reconstruction]:
    """All models, the largest first."""
    options = quiet_pycolmap(_PURPOSE).IncrementalPipelineOptions()
    options.random_seed = config.seed
    options.extract_colors = False  # nobody looks at them
    options.ba_refine_focal_length = options.ba_refine_extra_params = not known
    return map_incrementally(MapRequest(database, options, images))
