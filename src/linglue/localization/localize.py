"""Many images localized in one map, with a record that survives interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.engine import Engine, Files
from linglue.core.fingerprint import file_sha256, fingerprint
from linglue.core.lock import locked
from linglue.core.pool import Pool
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.pose import Pose
from linglue.localization.localizer import Localization, LocalizeConfig, Localizer
from linglue.localization.queries import Query, describe_camera, problem_line
from linglue.matcher import Matcher
from linglue.sfm.workspace import Workspace

_FOREIGN = "is no record of `linglue localize` and would be replaced, expected another name for the output"


@dataclass(frozen=True)
class Located:
    """What is recorded about one image."""

    name: str
    made_from: str  # fingerprint of image, map and settings
    cam_from_world: tuple[float, ...] | None  # qw qx qy qz tx ty tz
    reason: str | None  # why there is no pose
    inliers: int
    correspondences: int
    camera: str  # MODEL width height params…, as used
    retrieved: tuple[str, ...]
    seconds: float

    @classmethod
    def of(cls, name: str, made_from: str, found: Localization) -> Located:
        """What is kept of the localization of an image.

        Args:
            name: of the image.
            made_from: fingerprint of what decides its pose.
            found: what the localizer said.
        """
        pose = found.cam_from_world
        return cls(
            name,
            made_from,
            None if pose is None else tuple(pose.numbers.tolist()),
            found.reason,
            found.inliers,
            found.correspondences,
            describe_camera(found.camera),
            found.retrieved,
            sum(found.timing.values()),
        )

    @property
    def pose(self) -> Pose | None:
        """Camera from world; None where the image was not localized."""
        return None if self.cam_from_world is None else Pose.from_numbers(np.array(self.cam_from_world))


@dataclass(frozen=True)
class Run:
    """What localizing many images did."""

    located: list[Located]  # in the order of the queries, also those without a pose
    problems: list[str]  # one line about each image that could not be used
    made: int
    kept: int  # were there already


def map_settings(work: Workspace, config: LocalizeConfig, matcher: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides where an image is found, but the image itself.

    Args:
        work: of the map.
        config: how images are localized.
        matcher: JSON values of extraction and matcher.
    """
    with work.features() as store:
        features = fingerprint(features=store.made_from())
    return {
        "features": features,
        "model": {path.name: file_sha256(path) for path in sorted(work.model.iterdir()) if path.is_file()},
        "config": asdict(config),
        **matcher,
    }


def localize_queries(
    queries: Sequence[Query],
    load_map: Callable[[], Localizer],
    settings: Mapping[str, Any],
    record: Path,
    engine: Engine | None = None,
    make_matcher: Callable[[], Matcher] | None = None,
) -> Run:
    """Localize all images; what is known from the same image, camera and settings is kept.

    Args:
        queries: the images.
        load_map: called only if there is something to do.
        settings: of `map_settings`.
        record: a file of JSON lines, one per image, written as they are finished: a killed run loses the image it was
            working on.
        engine: where they are localized; None: in this process.
        make_matcher: the map's, called in other processes, to which the map travels without; needed with an engine.
    """
    problems: list[str] = []
    found: dict[str, Located] = {}
    with locked(record):
        new, known = not record.exists(), read_record(record)
        if not new:
            _write_record(record, known.values())  # without what a killed run left of its last line
        todo: list[tuple[Query, str]] = []
        for query in queries:
            try:
                camera = {"camera": describe_camera(query.camera), "refine": query.refine_camera}
                made_from = fingerprint(**settings, **camera, image=file_sha256(query.path))
            except LinGlueError as error:
                problems.append(problem_line(query.name, query.path, error))
                continue
            if query.name in known and known[query.name].made_from == made_from:
                found[query.name] = known[query.name]
            else:
                todo.append((query, made_from))
        kept = len(found)
        if todo:
            make, files = partial(_Worker, load_map(), make_matcher), Files(_files)
            bar = progress(initial=kept, total=kept + len(todo), desc="localize", unit="image")
            failures: dict[str, str] = {}
            with bar, _appending(record, new) as file:
                for (query, made_from), result in (engine or Pool()).run(make, todo, files):
                    bar.update()
                    if isinstance(result, str):
                        failures[query.name] = result
                        continue
                    found[query.name] = Located.of(query.name, made_from, result)
                    try:
                        file.write(_line(found[query.name]))
                        file.flush()
                    except OSError as error:
                        raise LinGlueError(f"{record}: cannot be written ({error.strerror})") from error
            problems += [failures[query.name] for query in queries if query.name in failures]
            if known or found:
                _write_record(record, {**known, **found}.values())
    return Run([found[query.name] for query in queries if query.name in found], problems, len(found) - kept, kept)


@contextmanager
def _appending(record: Path, new: bool) -> Iterator[TextIO]:
    """The record, open for more lines; a new one in which nothing was written is removed again."""
    try:
        with record.open("a", encoding="utf-8") as file:
            yield file
    finally:
        if new and record.stat().st_size == 0:
            record.unlink()


def _files(task: tuple[Query, str]) -> Sequence[Path]:
    return [task[0].path]


class _Worker:
    """Localizes one image, or says in one line why it cannot be used."""

    def __init__(self, localizer: Localizer, make_matcher: Callable[[], Matcher] | None) -> None:
        if make_matcher is not None and localizer.matcher is None:
            localizer.matcher = make_matcher()
        self._localizer = localizer

    def __call__(self, task: tuple[Query, str], path: Path) -> Localization | str:
        query = task[0]
        try:
            return self._localizer.localize(path, query.camera, query.refine_camera)
        except LinGlueError as error:
            return problem_line(query.name, path, error)


def _line(located: Located) -> str:
    return json.dumps(asdict(located)) + "\n"


def read_record(path: Path) -> dict[str, Located]:
    """By name, the last one of each. Of a killed run the last line may be cut; any other line is another's file."""
    found: dict[str, Located] = {}
    if not path.exists():
        return found
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: {_FOREIGN}") from error
    for number, line in enumerate(lines):
        try:
            values = json.loads(line)
            lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
            found[values["name"]] = Located(**{**values, **lists})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            cut = found and number == len(lines) - 1
            if not cut:
                raise LinGlueError(f"{path}: {_FOREIGN}") from error
    return found


def _write_record(path: Path, located: Iterable[Located]) -> None:
    """One line per image, whole, so that lines can be added."""
    with atomic_path(path) as temporary:
        temporary.write_text("".join(map(_line, located)), encoding="utf-8")
