"""A folder with one file per pair of images, and a record of those that are ours: a killed run resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linglue.core.atomic import remove_leftovers
from linglue.core.lock import LOCK, locked
from linglue.core.paths import path_below
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair
from linglue.sfm.export_model import check_new_folder

RECORD = "linglue.jsonl"  # first line: made_by; then a line when a file is begun, and one when it is finished


class PairFolder:
    """The files of `linglue match FOLDER -o DIR`: `DIR/IMAGE0/IMAGE1` and a suffix.

    A folder that is there is used only if its record says that the same settings made it; anything else is refused and
    stays as it is.

    Args:
        folder: new, empty, or of an earlier run.
        suffix: of its files, as ".npz".
        made_by: fingerprint of all that decides the files beside the images.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with PairFolder(Path(folder) / "new", ".txt", "settings").opened() as files:
        ...         files.put(("a.jpg", "b.jpg"), "images", {"matches": 3}, lambda path: path.write_text("3"))
        ...     with PairFolder(Path(folder) / "new", ".txt", "settings").opened() as files:
        ...         files.done(("a.jpg", "b.jpg"), "images")
        {'matches': 3}
    """

    def __init__(self, folder: Path, suffix: str, made_by: str) -> None:
        self.folder, self.suffix = folder, suffix
        self._made_by = made_by
        self._entries: dict[str, dict[str, Any]] = {}

    @property
    def record(self) -> Path:
        """What is ours in this folder, and what it was made from."""
        return self.folder / RECORD

    @contextmanager
    def opened(self) -> Iterator[PairFolder]:
        """Work alone in the folder, with what earlier runs finished; a new one in which nothing was made is removed."""
        self.check()
        new = not self.folder.exists()
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise LinGlueError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        try:
            with locked(self.folder):
                self._resume()
                try:
                    yield self
                finally:
                    if not any((self.folder / name).exists() for name in self._entries):
                        self.record.unlink(missing_ok=True)
        finally:
            if new and not any(self.folder.iterdir()):
                self.folder.rmdir()

    def check(self) -> None:
        """Refuse a folder that is not ours or was made by other settings; nothing is written."""
        if not self.record.is_file():
            left = list(self.folder.iterdir()) if self.folder.is_dir() else []
            if [path.name for path in left] != [LOCK]:  # of a run that was killed before it wrote anything
                check_new_folder(self.folder)
            return
        self._read()

    def done(self, pair: Pair, made_from: str | None) -> dict[str, Any] | None:
        """What was noted of a pair whose file is there and was made from the same images; None: it must be made.

        Args:
            pair: of image names.
            made_from: fingerprint of both images; None: unknown.
        """
        name = self._name(pair)
        entry = self._entries.get(name, {})
        if made_from is None or entry.get("made_from") != made_from or not (self.folder / name).is_file():
            return None
        return dict(entry["facts"])

    def put(self, pair: Pair, made_from: str | None, facts: Mapping[str, Any], write: Callable[[Path], object]) -> None:
        """Make the file of a pair; a file at its place that is not ours is refused.

        Args:
            pair: of image names.
            made_from: fingerprint of both images.
            facts: JSON values that `done` gives back to later runs.
            write: makes the file, whole or not at all, at the path it is given.
        """
        name = self._name(pair)
        path = self.folder / name
        if path.exists() and name not in self._entries:
            raise LinGlueError(f"{path}: was not made by LinGlue, expected a folder that nobody else writes to")
        self._append({"file": name, "made_from": None})
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        self._append({"file": name, "made_from": made_from, "facts": dict(facts)})

    def others(self, pairs: Sequence[Pair]) -> list[str]:
        """Files of earlier runs that belong to none of these pairs."""
        asked = {self._name(pair) for pair in pairs}
        return [name for name in self._entries if name not in asked and (self.folder / name).is_file()]

    def _name(self, pair: Pair) -> str:
        return path_below(self.folder, "/".join(pair), self.suffix).relative_to(self.folder).as_posix()

    def _append(self, line: dict[str, Any]) -> None:
        """Note a file as begun or finished: what is noted outlives the process."""
        with self.record.open("a", encoding="ascii") as file:
            if file.tell() == 0:
                file.write(json.dumps({"made_by": self._made_by}) + "\n")
            file.write(json.dumps(line) + "\n")
        self._entries[line["file"]] = line

    def _resume(self) -> None:
        """Remove what a killed run left unfinished: the end of the record, and temporary files of ours."""
        whole = self._read()
        if whole is not None:
            os.truncate(self.record, whole)
        for folder in {self.folder, *((self.folder / name).parent for name in self._entries)}:
            if folder.is_dir():
                remove_leftovers(folder)

    def _read(self) -> int | None:
        """Read the record, if there is one.

        Returns:
            the bytes of its whole lines: a killed run may have left half a line.
        """
        if not self.record.is_file():
            return None
        text = self.record.read_bytes()
        whole = text.rfind(b"\n") + 1
        try:
            lines = [json.loads(line) for line in text[:whole].splitlines()]
            made_by = lines[0]["made_by"] if lines else self._made_by
            self._entries = {line["file"]: line for line in lines[1:]}
        except (ValueError, KeyError, TypeError) as error:
            raise LinGlueError(f"{self.record}: damaged, expected LinGlue's record of this folder") from error
        if made_by != self._made_by:
            raise LinGlueError(
                f"{self.folder}: was made with other settings or by another LinGlue, expected the same, or a new folder"
            )
        return whole
