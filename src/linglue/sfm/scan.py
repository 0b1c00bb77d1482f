"""What lies in a folder of photographs: those that can be used, and one line about each file that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.io.exif import UPRIGHT, read_exif
from linglue.io.images import IMAGE_SUFFIXES
from linglue.sfm.feature_store import FeatureStore


@dataclass(frozen=True)
class Photo:
    """A photograph by its name: the path below the folder it was found in, whatever characters that has."""

    name: str
    path: Path
    sha256: str
    mask: Path | None = None
    mask_sha256: str | None = None


@dataclass(frozen=True)
class Survey:
    """The photographs of a folder, sorted by name, and what is to be said about its other files."""

    photos: list[Photo]
    problems: list[str]
    notes: list[str]  # nothing is wrong, but users should know
    duplicates: frozenset[str]  # names of photographs left out because another has the same content


def check_images(folder: Path, masks: Path | None = None, least: int = 1) -> None:
    """Refuse folders with fewer than `least` photographs, before anything is written."""
    if not folder.is_dir():
        raise LinGlueError(f"{folder}: no such folder, expected a folder of photographs")
    if masks is not None and not masks.is_dir():
        raise LinGlueError(f"{masks}: no such folder, expected a folder of masks")
    found = sum(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.rglob("*"))
    if found == 0:
        raise LinGlueError(f"{folder}: holds no photograph (expected: {', '.join(sorted(IMAGE_SUFFIXES))})")
    if found < least:
        raise LinGlueError(f"{folder}: holds {found} photograph, expected at least {least}")


def survey(folder: Path, store: FeatureStore, masks: Path | None = None, besides: Path | None = None) -> Survey:
    """Everything in `folder` and below, except hidden files, `masks` and what lies in `besides`.

    A mask has its photograph's name below the folder `masks`, with .png appended as COLMAP has it, or instead of the
    extension. Photographs without one are used whole.
    """
    check_images(folder, masks)
    left_out = [p.resolve() for p in (masks, besides) if p is not None]
    photos: list[Photo] = []
    problems: list[str] = []
    notes: list[str] = []
    duplicates: set[str] = set()
    first_of: dict[str, str] = {}  # by content
    for path in tqdm(_files(folder, left_out), unit="file", desc="survey", disable=None, leave=False):
        name = path.relative_to(folder).as_posix()
        if any(c in "\t\n\r" or "\ud800" <= c <= "\udfff" for c in name):
            problems.append(f"{name!r}: a name with tabs, line breaks or bytes that are no UTF-8, left out")
            continue
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            problems.append(f"{name}: not a photograph, left out")
            continue
        sha256 = _sha256(path, store)
        if sha256 in first_of:
            problems.append(f"{name}: the same photograph as {first_of[sha256]}, left out")
            duplicates.add(name)
            continue
        first_of[sha256] = name
        exif = read_exif(path)
        if exif is not None and exif.orientation != UPRIGHT:
            notes.append(f"{name}: turned upright as its EXIF says")
        mask = None if masks is None else _mask_of(name, masks)
        photos.append(Photo(name, path, sha256, mask, None if mask is None else _sha256(mask, store)))
    if masks is not None and all(photo.mask is None for photo in photos):
        raise LinGlueError(f"{masks}: holds no mask for any photograph, expected e.g. {photos[0].name}.png")
    return Survey(photos, problems, notes, frozenset(duplicates))


def _files(folder: Path, left_out: list[Path]) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        inside = any(path.resolve().is_relative_to(other) for other in left_out)
        if path.is_file() and not hidden and not inside:
            found.append(path)
    return found


def _mask_of(name: str, masks: Path) -> Path | None:
    candidates = (masks / f"{name}.png", (masks / name).with_suffix(".png"), masks / name)
    return next((path for path in candidates if path.is_file()), None)


def _sha256(path: Path, store: FeatureStore) -> str:
    known = store.known_sha256(path)
    if known is None:
        known = file_sha256(path)
        store.remember_sha256(path, known)
    return known
