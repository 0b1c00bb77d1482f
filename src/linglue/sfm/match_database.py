"""Better matches for a COLMAP database with SIFT features: matched pair by pair, then verified for the mapper."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from linglue.core.engine import SHARED_KEPT
from linglue.core.fingerprint import fingerprint
from linglue.core.lock import locked
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_pixel, quiet_pycolmap
from linglue.io.colmap.database import DatabaseImage, check_database, open_database, read_features, read_images
from linglue.io.colmap.edit import Edit, IdPair, MatchReplacer, edit_database
from linglue.io.pair_list import read_pairs
from linglue.matcher import MatcherConfig
from linglue.sfm.match import build_matcher
from linglue.types import Features

if TYPE_CHECKING:
    import pycolmap

EXISTING, EXHAUSTIVE = "existing", "exhaustive"


@dataclass(frozen=True)
class Rematched:
    """What was done to the database."""

    pairs: int
    made: int
    kept: int  # were there already, from the same features and settings
    matches: int
    verified: int | None  # pairs with a two-view geometry that a mapper can use; None if not asked for
    inliers: int | None


def match_database(path: str | Path, pairs: str | Path, matcher: MatcherConfig, verify: bool = True) -> Rematched:
    """Replace the matches of pairs in a database by better ones, and their two-view geometries.

    A copy is changed and takes the database's place when all is done. Each pair is remembered with what it was made
    from: the next run resumes where a killed one was, and does again only what changed.

    Args:
        path: COLMAP's database, of SIFT features.
        pairs: "existing" (those the database has matches of), "exhaustive", or a pair list file.
        matcher: for SIFT features.
        verify: estimate the two-view geometries, without which no mapper can start.

    Returns:
        How many pairs were matched, kept and verified.

    Example:
        >>> match_database("database.db", "existing", MatcherConfig(features="sift")).verified  # doctest: +SKIP
    """
    path = Path(path)
    check_database(path)
    with (
        locked(path, wait=False),
        edit_database(path) as edit,
        open_database(edit.path) as database,
        MatchReplacer(edit.path, database) as replacer,
    ):
        images = {image.image_id: image for image in read_images(database).values()}
        chosen = _choose(path, pairs, images, replacer)
        made, matches = _match(path, chosen, images, matcher, database, replacer, edit)
        verified, inliers = _verify(chosen, images, database) if verify else (None, None)
    return Rematched(len(chosen), made, len(chosen) - made, matches, verified, inliers)


def _choose(
    path: Path, pairs: str | Path, images: Mapping[int, DatabaseImage], replacer: MatchReplacer
) -> list[IdPair]:
    """The pairs to match; those that share an image follow each other."""
    if pairs == EXISTING:
        chosen = replacer.pairs()
        if not chosen:
            raise LinGlueError(
                f"{path}: has no matches whose pairs could be used, expected pairs {EXHAUSTIVE} or a list"
            )
        lost = next((number for pair in chosen for number in pair if number not in images), None)
        if lost is not None:
            raise LinGlueError(f"{path}: has matches of image {lost}, expected it among its {len(images)} images")
    elif pairs == EXHAUSTIVE:
        chosen = list(combinations(images, 2))
        if not chosen:
            raise LinGlueError(f"{path}: has {len(images)} images, expected at least 2")
    else:
        ids = {image.name: image.image_id for image in images.values()}
        listed = read_pairs(Path(pairs))
        unknown = next((name for pair in listed for name in pair if name not in ids), None)
        if unknown is not None:
            raise LinGlueError(f"{pairs}: names the image {unknown!r}, which is not among the {len(ids)} of {path}")
        chosen = [(ids[name0], ids[name1]) for name0, name1 in listed]
        if not chosen:
            raise LinGlueError(f"{pairs}: holds no pair, expected at least one")
    return sorted((min(pair), max(pair)) for pair in chosen)


def _match(
    path: Path,
    pairs: Sequence[IdPair],
    images: Mapping[int, DatabaseImage],
    matcher: MatcherConfig,
    database: pycolmap.Database,
    replacer: MatchReplacer,
    edit: Edit,
) -> tuple[int, int]:
    """Number of pairs that had to be matched, and of matches of all pairs."""

    @lru_cache(SHARED_KEPT)
    def load(image_id: int) -> Features:
        try:
            features = read_features(database, images[image_id])
        except LinGlueError as error:
            raise LinGlueError(f"{path}: {error}") from error
        if len(features) and features.dim == 0:
            raise LinGlueError(f"{path}: image {images[image_id].name!r} has no descriptors, expected COLMAP's SIFT")
        return features

    used = sorted({image_id for pair in pairs for image_id in pair})
    digests = {i: _digest(load(i)) for i in progress(used, desc="read features", unit="image")}
    if not any(database.num_keypoints_for_image(image_id) for image_id in used):
        raise LinGlueError(f"{path}: its images have no keypoints, they must be extracted first")
    built = build_matcher(matcher)
    settings = dict(built.settings)
    made_from = {pair: fingerprint(matcher=settings, features=[digests[i] for i in pair]) for pair in pairs}
    done = replacer.made_from()
    missing = [pair for pair in pairs if done.get(pair) != made_from[pair]]
    bar = progress(total=len(pairs), initial=len(pairs) - len(missing), desc="match", unit="pair")
    with bar:
        for pair in missing:
            features0, features1 = load(pair[0]), load(pair[1])
            found = len(features0) > 0 and len(features1) > 0
            indices = built.match(features0, features1).indices if found else np.zeros((0, 2), np.int64)
            replacer.put(pair, made_from[pair], indices)
            edit.keep = True
            bar.update()
    return len(missing), sum(len(database.read_matches(*pair)) for pair in pairs)


def _verify(
    pairs: Sequence[IdPair],
    images: Mapping[int, DatabaseImage],
    database: pycolmap.Database,
) -> tuple[int, int]:
    """Two-view geometries where there are none; number of usable pairs and of their inliers.

    Pair by pair, as pycolmap's own loop verifies the whole database, and an exception in its threads ends the process.
    """
    colmap = quiet_pycolmap("verification")
    options = colmap.TwoViewGeometryOptions()
    options.ransac.random_seed = 0  # same input, same output
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}

    @lru_cache(SHARED_KEPT)
    def view(image_id: int) -> tuple[pycolmap.Camera, np.ndarray]:
        image = images[image_id]
        return cameras[image.camera_id], colmap_from_pixel(read_features(database, image).keypoints)

    missing = [pair for pair in pairs if not database.exists_two_view_geometry(*pair)]
    for image_id0, image_id1 in progress(missing, desc="verify", unit="pair"):
        matches = database.read_matches(image_id0, image_id1)
        geometry = colmap.estimate_two_view_geometry(*view(image_id0), *view(image_id1), matches, options)
        database.write_two_view_geometry(image_id0, image_id1, geometry)
    inliers = [len(database.read_two_view_geometry(*pair).inlier_matches) for pair in pairs]
    usable = [count for count in inliers if count >= options.min_num_inliers]
    return len(usable), sum(usable)


def _digest(features: Features) -> str:
    digest = hashlib.sha256()
    for array in (features.keypoints, features.descriptors, features.scales, features.oris):
        digest.update(b"" if array is None else array.tobytes())
    return digest.hexdigest()
