"""COLMAP's own features and matches, on the CPU: for comparisons, and for training pairs of real image sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.geometry.colmap import quiet_pycolmap

if TYPE_CHECKING:
    import pycolmap

_PURPOSE = "COLMAP's own SIFT"


def extract_sift(
    database: Path,
    images: Path,
    names: Sequence[str],
    cameras: pycolmap.CameraMode,
    max_keypoints: int,
    resize: int | None = None,
    threads: int = -1,
) -> None:
    """A new database with COLMAP's SIFT features.

    Args:
        database: must not exist.
        images: folder that the names are relative to.
        names: of the images.
        cameras: who shares one.
        max_keypoints: per image.
        resize: longer side; None: original.
        threads: -1: all cores.
    """
    pycolmap = quiet_pycolmap(_PURPOSE)
    options = pycolmap.FeatureExtractionOptions()
    options.use_gpu = False
    options.num_threads, options.max_image_size = threads, resize or -1
    options.sift.max_num_features = max_keypoints
    pycolmap.extract_features(
        database, images, list(names), cameras, extraction_options=options, device=pycolmap.Device.cpu
    )


def match_sift(database: Path, sequential: bool = False, verify: bool = True, threads: int = -1, seed: int = 0) -> None:
    """COLMAP's matches of all pairs, or of neighbours by name; pairs that the database has are skipped.

    Args:
        database: with features.
        sequential: neighbours by name only.
        verify: also find the geometry of each pair.
        threads: -1: all cores.
        seed: of everything random.
    """
    pycolmap = quiet_pycolmap(_PURPOSE)
    pycolmap.set_random_seed(seed)
    options, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    options.use_gpu = False
    options.num_threads, options.skip_geometric_verification = threads, not verify
    verification.ransac.random_seed = seed
    match = pycolmap.match_sequential if sequential else pycolmap.match_exhaustive
    match(database, options, verification_options=verification, device=pycolmap.Device.cpu)
