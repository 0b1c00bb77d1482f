"""What lies in a folder of images: those that can be used, and one line about each file that cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linglue.core.fingerprint import file_sha256
from linglue.core.paths import check_name
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.io.exif import UPRIGHT, read_exif
from linglue.io.images import IMAGE_SUFFIXES
from linglue.sfm.store import FeatureStore


@dataclass(frozen=True)
class ImageFile:
    """An image by its name: the path below the folder it was found in, whatever characters that has."""

    name: str
    path: Path
    sha256: str
    mask: Path | None = None
    mask_sha256: str | None = None


@dataclass(frozen=True)
class Scan:
    """The images of a folder, sorted by name, and what is to be said about its other files."""

    images: list[ImageFile]
    problems: list[str]
    notes: list[str]  # nothing is wrong, but users should know
    duplicates: frozenset[str]  # names of images left out because another has the same content


@dataclass(frozen=True)
class ScanConfig:
    """Which files of a folder are meant."""

    masks: Path | None = None  # folder of masks: an image's name with .png appended, as COLMAP has it, or instead
    image_list: Path | None = None  # file with one name per line: only these
    verify: bool = False  # read every file, also where size and time of change are as they were


def check_images(folder: Path, config: ScanConfig | None = None, least: int = 1) -> None:
    """Refuse folders with too few images, before anything is written.

    Args:
        folder: of images.
        config: which of its files are meant.
        least: images that are needed.
    """
    config = config or ScanConfig()
    if not folder.is_dir():
        raise LinGlueError(f"{folder}: no such folder, expected a folder of images")
    if config.masks is not None and not config.masks.is_dir():
        raise LinGlueError(f"{config.masks}: no such folder, expected a folder of masks")
    problems: list[str] = []
    found = sum(path.suffix.lower() in IMAGE_SUFFIXES for path in _candidates(folder, config, problems))
    if found == 0:
        source = folder if config.image_list is None else config.image_list
        why = f" ({problems[0]})" if problems else ""
        raise LinGlueError(f"{source}: holds no image{why}, expected {', '.join(sorted(IMAGE_SUFFIXES))}")
    if found < least:
        raise LinGlueError(f"{folder}: holds {found} image, expected at least {least}")


def list_images(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The image files of a folder and below, without reading them.

    Args:
        folder: links to folders are followed; names are relative to it.

    Returns:
        Files by name, sorted, and one line for each folder or link that could not be looked into.
    """
    problems: list[str] = []
    files = {path.relative_to(folder).as_posix(): path for path in _files(folder, problems)}
    images = {name: path for name, path in files.items() if path.suffix.lower() in IMAGE_SUFFIXES}
    odd = {name: problem for name, path in images.items() if (problem := _why_not(name, path)) is not None}
    return {name: path for name, path in images.items() if name not in odd}, [*problems, *odd.values()]


def scan_images(
    folder: Path, store: FeatureStore, config: ScanConfig | None = None, besides: Sequence[Path] = ()
) -> Scan:
    """Everything in `folder` and below, except hidden files, masks and what lies in `besides`.

    Args:
        folder: links to folders are followed; names are relative to it.
        store: remembers contents by path, size and time of change, so that unchanged files are not read again.
        config: which files are meant. Images without a mask are used whole.
        besides: files and folders that are no input.
    """
    config = config or ScanConfig()
    check_images(folder, config)
    left_out = [os.path.realpath(path) for path in (*besides, *([config.masks] if config.masks else []))]
    images: list[ImageFile] = []
    problems: list[str] = []
    notes: list[str] = []
    duplicates: set[str] = set()
    first_of: dict[str, str] = {}  # by content
    for path in progress(_candidates(folder, config, problems), unit="file", desc="scan", leave=False):
        if _is_inside(path, left_out):
            continue
        name = path.relative_to(folder).as_posix()
        problem = _why_not(name, path)
        if problem is not None:
            problems.append(problem)
            continue
        try:
            sha256 = _sha256(path, store, config.verify)
            mask = None if config.masks is None else _mask_of(name, config.masks)
            image = ImageFile(name, path, sha256, mask, None if mask is None else _sha256(mask, store, config.verify))
        except (LinGlueError, OSError) as error:
            problems.append(f"{name}: left out ({_reason(error, path)})")
            continue
        if sha256 in first_of:
            problems.append(f"{name}: the same image as {first_of[sha256]}, left out")
            duplicates.add(name)
            continue
        first_of[sha256] = name
        exif = read_exif(path)
        if exif is not None and exif.orientation != UPRIGHT:
            notes.append(f"{name}: rotated upright as its EXIF says")
        images.append(image)
    if config.masks is not None and images and all(image.mask is None for image in images):
        raise LinGlueError(f"{config.masks}: holds no mask for any image, expected e.g. {images[0].name}.png")
    return Scan(images, problems, notes, frozenset(duplicates))


def _candidates(folder: Path, config: ScanConfig, problems: list[str]) -> list[Path]:
    """All files that may be meant, sorted; what stands in the way of some is added to `problems`."""
    if config.image_list is None:
        return _files(folder, problems)
    try:
        names = config.image_list.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LinGlueError(
            f"{config.image_list}: cannot be read, expected a list with one image name a line"
        ) from error
    paths = []
    for name in dict.fromkeys(name.removesuffix("\r") for name in names):
        if not name.strip() or name.startswith("#"):
            continue
        check_name(name, config.image_list)
        if (folder / name).is_file():
            paths.append(folder / name)
        else:
            problems.append(f"{name}: no such file in {folder}, left out")
    return sorted(paths)


def _files(folder: Path, problems: list[str]) -> list[Path]:
    """All files below, links followed, none hidden; a folder that was seen already is not entered again."""
    found: list[Path] = []
    seen = {os.path.realpath(folder)}
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            problems.append(f"{current.relative_to(folder).as_posix()}: folder left out ({error.strerror})")
            continue
        for entry in entries:
            path = current / entry.name
            name = path.relative_to(folder).as_posix()
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    real = os.path.realpath(path)
                    if real in seen:
                        problems.append(f"{name}: a link to a folder that is there already, left out")
                    else:
                        seen.add(real)
                        waiting.append(path)
                elif entry.is_file():
                    found.append(path)
                elif entry.is_symlink():
                    problems.append(f"{name}: a link to nothing, left out")
            except OSError as error:  # links in a circle
                problems.append(f"{name}: left out ({error.strerror})")
    return sorted(found)


def _is_inside(path: Path, folders: Sequence[str]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(other) for other in folders)


def _why_not(name: str, path: Path) -> str | None:
    if any(c in "\t\n\r" or "\ud800" <= c <= "\udfff" for c in name):
        return f"{name!r}: a name with tabs, line breaks or bytes that are no UTF-8, left out"
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        return f"{name}: not an image, left out"
    return None


def _reason(error: LinGlueError | OSError, path: Path) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return str(text).removeprefix(f"{path}: ")


def _mask_of(name: str, masks: Path) -> Path | None:
    candidates = (masks / f"{name}.png", (masks / name).with_suffix(".png"), masks / name)
    return next((path for path in candidates if path.is_file()), None)


def _sha256(path: Path, store: FeatureStore, verify: bool) -> str:
    known = None if verify else store.known_sha256(path)
    if known is None:
        known = file_sha256(path)
        store.remember_sha256(path, known)
    return known
