"""The folder a run works in: who works in it now, and where its things lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from linglue.core.atomic import remove_leftovers
from linglue.core.lock import locked
from linglue.errors import LinGlueError
from linglue.sfm.feature_store import FeatureStore
from linglue.sfm.match_store import MatchStore


@dataclass(frozen=True)
class Workspace:
    """Names of everything in a work folder."""

    folder: Path

    @property
    def features_file(self) -> Path:
        return self.folder / "features.db"

    @property
    def matches_file(self) -> Path:
        return self.folder / "matches.db"

    @property
    def pairs(self) -> Path:
        return self.folder / "pairs.tsv"

    @property
    def retrieval(self) -> Path:
        return self.folder / "retrieval.npz"

    @property
    def database(self) -> Path:
        """COLMAP's."""
        return self.folder / "database.db"

    @property
    def database_record(self) -> Path:
        """What COLMAP's database was made from; written after it."""
        return self.folder / "database.json"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def pictures(self) -> Path:
        return self.folder / "pictures"

    def features(self) -> FeatureStore:
        return FeatureStore(self.features_file)

    def matches(self) -> MatchStore:
        return MatchStore(self.matches_file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Work alone in the folder. A second process waits and then finds the work done; a killed one holds no lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LinGlueError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        with locked(self.folder):
            remove_leftovers(self.folder)
            yield
