"""The folder a run works in: who works in it now, where its things lie, and which of them are ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linglue.core.atomic import atomic_path, remove_leftovers
from linglue.core.fingerprint import file_sha256
from linglue.core.lock import LOCK, locked
from linglue.errors import LinGlueError
from linglue.sfm.store import FeatureStore, MatchStore

RECORD = "linglue.json"
OVERWRITE = "another work folder, or --overwrite to replace it"
MODEL_FILES = ("cameras.bin", "images.bin", "points3D.bin")  # without any of them there is no model


@dataclass(frozen=True)
class Workspace:
    """Names of everything in a work folder, and the record of what LinGlue made there.

    Example:
        >>> Workspace(Path("WORK")).model.as_posix()
        'WORK/model'
    """

    folder: Path

    @property
    def features_file(self) -> Path:
        """Of `linglue extract`."""
        return self.folder / "features.db"

    @property
    def matches_file(self) -> Path:
        """Of `linglue match-pairs`."""
        return self.folder / "matches.db"

    @property
    def pairs(self) -> Path:
        """The list of pairs that are to be matched."""
        return self.folder / "pairs.tsv"

    @property
    def retrieval(self) -> Path:
        """Which images look alike, for `linglue localize`."""
        return self.folder / "retrieval.npz"

    @property
    def database(self) -> Path:
        """COLMAP's."""
        return self.folder / "database.db"

    @property
    def model(self) -> Path:
        """The sparse model, in COLMAP's binary files."""
        return self.folder / "model"

    @property
    def summary(self) -> Path:
        """What the reconstruction came to, as JSON."""
        return self.folder / "summary.json"

    @property
    def pictures(self) -> Path:
        """Folder of the drawings."""
        return self.folder / "pictures"

    @property
    def drawings(self) -> tuple[Path, Path]:
        """The model, and which images match."""
        return self.pictures / "model.png", self.pictures / "matches.png"

    @property
    def dense(self) -> Path:
        """Folder of what `linglue dense` keeps: undistorted images and depth maps, in a folder for each model."""
        return self.folder / "dense"

    @property
    def report(self) -> Path:
        """Of `linglue report`."""
        return self.folder / "report.html"

    @property
    def record(self) -> Path:
        """What is ours in this folder, and what it was made from."""
        return self.folder / RECORD

    def outputs(self) -> tuple[Path, ...]:
        """All that is made from features and matches."""
        return (self.pairs, self.database, self.model, self.retrieval, *self.drawings, self.summary)

    def model_id(self) -> str | None:
        """12 hexadecimal digits of the model's content; None where none is whole."""
        files = [self.model / name for name in MODEL_FILES]
        if not all(file.is_file() for file in files):
            return None
        return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()[:12]

    def derived(self) -> dict[Path, bool]:
        """What was made from a model, and whether it is of the model that is there now."""
        now, made = self.model_id(), self.notes()["made"]
        ours = [
            key for key in sorted(made) if key == self._key(self.report) or key.startswith(f"{self._key(self.dense)}/")
        ]
        return {self.folder / key: now is not None and made[key]["made_from"] == now for key in ours}

    def features(self, repair: bool = False) -> FeatureStore:
        """The features, open; a damaged store is refused, unless `repair` says to put it aside and begin again."""
        return FeatureStore(self.features_file, repair)

    def matches(self, repair: bool = False) -> MatchStore:
        """The matches, open; see `features`."""
        return MatchStore(self.matches_file, repair)

    def not_images(self, images: Path) -> list[Path]:
        """What a scan of the folder `images` must pass over: a work folder inside it, or what is ours beside them."""
        work, folder = (Path(os.path.realpath(path)) for path in (self.folder, images))
        if work != folder and work.is_relative_to(folder):
            return [self.folder]
        stores = [self.features_file, self.matches_file]
        journals = [path.with_name(path.name + end) for path in (*stores, self.database) for end in ("-wal", "-shm")]
        return [*self.outputs(), self.dense, self.report, *stores, *journals, self.record]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Work alone in the folder. A second process waits and then finds the work done; a killed one holds no lock.

        A new folder in which nothing could be done is removed again.
        """
        self._check_stores()
        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]  # innermost first
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LinGlueError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        try:
            with locked(self.folder):
                remove_leftovers(self.folder)
                yield
        except LinGlueError:
            if new and self._is_empty():
                shutil.rmtree(self.folder)
                for parent in new[1:]:
                    parent.rmdir()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Like `locked`, for commands that only read: works in a folder that cannot be written, too."""
        if not os.access(self.folder, os.W_OK):
            yield
            return
        with self.locked():
            yield

    def notes(self) -> dict[str, Any]:
        """The record: `made` (by name: `made_from`, and the sizes of its files) and whatever else was noted."""
        try:
            notes = json.loads(self.record.read_text(encoding="utf-8"))
            return notes if isinstance(notes, dict) and isinstance(notes.get("made"), dict) else {"made": {}}
        except FileNotFoundError:
            return {"made": {}}
        except (OSError, ValueError):
            raise LinGlueError(f"{self.record}: damaged, expected LinGlue's record of this folder") from None

    def note(self, **values: Any) -> None:
        """Add JSON values to the record."""
        self._write_notes({**self.notes(), **values})

    def check_free(self, paths: Sequence[Path], overwrite: bool = False, expected: str = OVERWRITE) -> None:
        """Refuse to replace what is not ours: anything that is there and that the record does not name.

        Args:
            paths: what is going to be written.
            overwrite: the user insists.
            expected: what the user can do instead.
        """
        made = self.notes()["made"]
        for path in paths:
            if not overwrite and os.path.lexists(path) and self._key(path) not in made:
                raise LinGlueError(f"{path}: was not made by LinGlue in this folder, expected {expected}")

    def is_made(self, path: Path, made_from: str) -> bool:
        """Whether something is all there and was made from this.

        Args:
            path: a file or a folder of this work folder.
            made_from: the fingerprint it should have.
        """
        entry = self.notes()["made"].get(self._key(path), {})
        if entry.get("made_from") != made_from or not path.exists():
            return False
        sizes, found = entry.get("bytes") or {}, _sizes(path)
        return all(found.get(name) == size for name, size in sizes.items())  # users may add files of their own

    @contextmanager
    def making(self, path: Path, made_from: str, changes: bool = False) -> Iterator[None]:
        """Write `path` in the block. From its beginning the record names it as ours, at its end as finished.

        Args:
            path: a file or a folder of this work folder.
            made_from: its fingerprint.
            changes: other programs may change the file later: its size is no sign of damage.
        """
        there, notes = self.record.exists(), self.notes()
        known = self._key(path) in notes["made"]
        notes["made"][self._key(path)] = {"made_from": None}
        self._write_notes(notes)
        try:
            yield
        except LinGlueError:  # nothing was written
            if not known:
                del notes["made"][self._key(path)]
                self._write_notes(notes) if there else self.record.unlink()
            raise
        notes["made"][self._key(path)] = {"made_from": made_from, "bytes": None if changes else _sizes(path)}
        self._write_notes(notes)

    def remove(self, paths: Sequence[Path]) -> list[Path]:
        """Remove those of the paths that the record names as ours, of folders only our files; returns them."""
        notes, removed = self.notes(), []
        for path in paths:
            entry = notes["made"].pop(self._key(path), None)
            if entry is None or not path.exists():
                continue
            if path.parent == self.dense:  # all in it is ours
                shutil.rmtree(path)
            elif path.is_dir():
                for name in entry.get("bytes") or MODEL_FILES:
                    (path / name).unlink(missing_ok=True)
            else:
                path.unlink()
            removed.append(path)
        for folder in (self.model, self.pictures, self.dense):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._write_notes(notes)
        return removed

    def _check_stores(self) -> None:
        """Refuse another program's files before anything, a lock included, is written beside them."""
        if self.record.exists():
            return
        for path, store in ((self.features_file, FeatureStore), (self.matches_file, MatchStore)):
            if path.is_file():
                store.check(path)

    def _is_empty(self) -> bool:
        """Whether the folder holds nothing that anybody would miss: at most the features of one image."""
        stores = {self.features_file, self.matches_file}
        ours = {file.with_name(file.name + end) for file in stores for end in ("", "-wal", "-shm")}
        if not set(self.folder.iterdir()) <= ours | {self.record, self.folder / LOCK}:
            return False
        if not self.features_file.is_file():
            return True
        with self.features() as features:
            return not features.stale() and sum(map(bool, features.counts().values())) < 2

    def _write_notes(self, notes: dict[str, Any]) -> None:
        with atomic_path(self.record) as temporary:
            temporary.write_text(json.dumps(notes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def _key(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _sizes(path: Path) -> dict[str, int]:
    base, files = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    return {file.relative_to(base).as_posix(): file.stat().st_size for file in files if file.is_file()}
