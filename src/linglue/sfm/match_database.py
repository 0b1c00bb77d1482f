"""Better matches for a COLMAP database with SIFT features: matched pair by pair, then verified for the mapper."""

from __future__ import annotations

import glob
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock, Timeout
from tqdm import tqdm

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import arrays_sha256, fingerprint
from linglue.errors import LinGlueError
from linglue.geometry.colmap import colmap_from_pixel, quiet_pycolmap
from linglue.io.colmap_database import DatabaseImage, check_database, open_database, read_features, read_images
from linglue.io.colmap_matches import IdPair, MatchReplacer
from linglue.io.pair_list import make_pair, read_pairs
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.sfm.match import FEATURES_KEPT, build_matcher
from linglue.sfm.store import MatchStore
from linglue.types import Features, FloatArray, IndexArray

if TYPE_CHECKING:
    import pycolmap

EXISTING, EXHAUSTIVE = "existing", "exhaustive"

_COPY = re.compile(r"\.[0-9a-f]{8}\.part")  # what `atomic_path` adds to a name
_JOURNALS = ("-wal", "-shm", "-journal")


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
    """Replace the matches of `pairs` in the database by those of `matcher`, and their two-view geometries.

    All or nothing: the work is done in a copy that takes the place of the database at the end. Matches are kept in a
    file beside it as they are found, so that the next run resumes a killed one.

    Args:
        path: of the database.
        pairs: "existing" (those the database has matches of), "exhaustive", or a pair list file.
        matcher: what matches them.
        verify: also estimate the two-view geometries.
    """
    path = Path(path)
    check_database(path)
    target = path.resolve()
    found = target.with_name(f".{target.name}.linglue")
    try:
        with (
            _alone(target),
            _changed_whole(target) as copy,
            MatchStore(found) as store,
            open_database(copy) as database,
            MatchReplacer(copy) as replacer,
        ):
            images = {image.image_id: image for image in read_images(database).values()}
            chosen = _choose(path, pairs, images, replacer)
            made, matches = _match(path, chosen, images, matcher, database, replacer, store)
            verified, inliers = _verify(chosen, images, database, replacer) if verify else (None, None)
        found.unlink()
    except LinGlueError as error:
        if found.is_file():
            _remove_empty(found)
        raise LinGlueError(str(error).replace(str(target), str(path))) from error
    return Rematched(len(chosen), made, len(chosen) - made, matches, verified, inliers)


@contextmanager
def _changed_whole(path: Path) -> Iterator[Path]:
    """A copy of the database that takes its place when the block ends well; else nothing has changed."""
    for leftover in path.parent.glob(f".{glob.escape(path.stem)}.????????.part{glob.escape(path.suffix)}*"):
        if _COPY.fullmatch(leftover.name[len(path.stem) + 1 : len(path.stem) + 15]):  # of a killed run
            leftover.unlink()
    before = _state(path)
    with atomic_path(path) as copy:
        try:
            with (
                closing(sqlite3.connect(path)) as source,  # not read-only: SQLite would leave side files behind
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
            shutil.copymode(path, copy)
            yield copy
        except LinGlueError as error:
            raise LinGlueError(str(error).replace(str(copy), str(path))) from error
        except sqlite3.Error as error:
            raise LinGlueError(f"{path}: {error}, expected a COLMAP database that can be copied") from error
        finally:
            for suffix in _JOURNALS:
                copy.with_name(copy.name + suffix).unlink(missing_ok=True)
        if _state(path) != before:
            raise LinGlueError(f"{path}: was changed by another program meanwhile, expected nobody else: run it again")
        for suffix in _JOURNALS:  # of the database that is replaced: SQLite would apply them to the new one
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _remove_empty(path: Path) -> None:
    """Remove the file of found matches if nothing was found."""
    with MatchStore(path) as store:
        empty = not store.rows()
    if empty:
        path.unlink()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    lock = FileLock(path.with_name(f".{path.name}.lock"))  # nobody holds it after a crash
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise LinGlueError(f"{path}: another process is matching it, expected one at a time") from error
    try:
        yield
    finally:
        lock.release()


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
    store: MatchStore,
) -> tuple[int, int]:
    """Number of pairs that had to be matched, and of matches of all pairs."""

    @lru_cache(FEATURES_KEPT)
    def load(image_id: int) -> Features:
        try:
            features = read_features(database, images[image_id])
        except LinGlueError as error:
            raise LinGlueError(f"{path}: {error}") from error
        if len(features) and features.dim == 0:
            raise LinGlueError(f"{path}: image {images[image_id].name!r} has no descriptors, needed are COLMAP's SIFT")
        return features

    used = sorted({image_id for pair in pairs for image_id in pair})
    digests = {i: _digest(load(i)) for i in tqdm(used, desc="read features", unit="image", disable=None)}
    if not any(database.num_keypoints_for_image(image_id) for image_id in used):
        raise LinGlueError(f"{path}: its images have no keypoints, they must be extracted first")
    built = build_matcher(matcher)
    by = fingerprint(matcher=dict(built.settings))
    made_from = {pair: fingerprint(matcher=by, features=[digests[i] for i in pair]) for pair in pairs}
    done = replacer.made_from()
    missing = [pair for pair in pairs if done.get(pair) != made_from[pair]]
    store.expect(by)
    kept = store.current({images[i].name: digest for i, digest in digests.items()})
    made = 0
    bar = tqdm(total=len(pairs), initial=len(pairs) - len(missing), desc="match", unit="pair", disable=None)
    with bar:
        for pair in missing:
            name0, name1 = (images[i].name for i in pair)
            if make_pair(name0, name1) not in kept:
                first, second = pair if name0 < name1 else pair[::-1]
                indices, scores = _match_pair(built, load(first), load(second))
                store.put(make_pair(name0, name1), (digests[first], digests[second]), by, indices, scores, 0.0)
                made += 1
            replacer.put(*pair, made_from[pair], store.get(name0, name1)[0])
            bar.update()
    return made, sum(len(database.read_matches(*pair)) for pair in pairs)


def _match_pair(matcher: PairMatcher, features0: Features, features1: Features) -> tuple[IndexArray, FloatArray]:
    if not len(features0) or not len(features1):
        return np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    found = matcher.match(features0, features1)
    return found.indices, found.scores


def _verify(
    pairs: Sequence[IdPair],
    images: Mapping[int, DatabaseImage],
    database: pycolmap.Database,
    replacer: MatchReplacer,
) -> tuple[int, int]:
    """Two-view geometries where there are none; number of usable pairs and of their inliers.

    Pair by pair, as pycolmap's own loop verifies the whole database, and an exception in its threads ends the process.
    """
    colmap = quiet_pycolmap("verification")
    options = colmap.TwoViewGeometryOptions()
    options.ransac.random_seed = 0  # same input, same output
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}

    @lru_cache(FEATURES_KEPT)
    def view(image_id: int) -> tuple[pycolmap.Camera, np.ndarray]:
        image = images[image_id]
        return cameras[image.camera_id], colmap_from_pixel(read_features(database, image).keypoints)

    done = set(replacer.verified())
    missing = [pair for pair in pairs if pair not in done]
    for image_id0, image_id1 in tqdm(missing, desc="verify", unit="pair", disable=None):
        matches = database.read_matches(image_id0, image_id1)
        geometry = colmap.estimate_two_view_geometry(*view(image_id0), *view(image_id1), matches, options)
        database.write_two_view_geometry(image_id0, image_id1, geometry)
    inliers = [len(database.read_two_view_geometry(*pair).inlier_matches) for pair in pairs]
    usable = [count for count in inliers if count >= options.min_num_inliers]
    return len(usable), sum(usable)


def _digest(features: Features) -> str:
    return arrays_sha256({name: getattr(features, name) for name in ("keypoints", "descriptors", "scales", "oris")})
