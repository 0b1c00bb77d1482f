"""Options that mean the same in every command, and the two ways to report: lines for people, JSON for machines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linglue.core.progress import Verbosity, verbosity
from linglue.errors import LinGlueError
from linglue.features import DEFAULT_FEATURES, EXTRACTORS, MAX_KEYPOINTS, RESIZE

if TYPE_CHECKING:
    from linglue.core.engine import Engine
    from linglue.matcher import MatcherConfig
    from linglue.sfm.extract import ExtractConfig
    from linglue.sfm.scan import ScanConfig
    from linglue.sfm.store import MatchStore
    from linglue.sfm.workspace import Workspace


def add_front_end(parser: argparse.ArgumentParser) -> None:
    """`--features` and the weights it may need."""
    parser.add_argument(
        "--features",
        default=DEFAULT_FEATURES,
        metavar="NAME",
        help=f"front-end: {', '.join(EXTRACTORS.names())}, or your own as package.module:Class",
    )
    parser.add_argument(
        "--extractor-weights", type=Path, metavar="FILE", help="weights of the front-end, if it needs any"
    )


def add_max_keypoints(parser: argparse.ArgumentParser, default: int = MAX_KEYPOINTS) -> None:
    """`--max-keypoints`, with another default where a command has its own."""
    parser.add_argument(
        "--max-keypoints",
        type=int,
        default=default,
        metavar="N",
        help="strongest kept per image; sift counts places, not orientations",
    )


def add_extraction(parser: argparse.ArgumentParser) -> None:
    """`--max-keypoints`, `--resize`, `--tile`: how features are taken from an image."""
    add_max_keypoints(parser)
    parser.add_argument(
        "--resize",
        type=int,
        default=RESIZE,
        metavar="LONGER_SIDE",
        help="work at this size, never enlarges; 0: original",
    )
    parser.add_argument(
        "--tile", type=int, metavar="SIDE", help="cut images larger than this into tiles: little memory"
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    """The folder of images, and `--masks`."""
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images, with any subfolders")
    parser.add_argument("--image-list", type=Path, metavar="FILE", help="only these images: one name a line")
    parser.add_argument(
        "--verify", action="store_true", help="read every image again, also those of the same size and time of change"
    )
    parser.add_argument(
        "--masks", type=Path, metavar="DIR", help="IMAGE.png for IMAGE in here: no keypoints where it is black"
    )


def scan_config(options: argparse.Namespace) -> ScanConfig:
    """Which files of IMAGES are meant, from --masks, --image-list and --verify."""
    from linglue.sfm.scan import ScanConfig

    return ScanConfig(options.masks, options.image_list, options.verify)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """`--overwrite`: whether files of others may be replaced."""
    parser.add_argument("--overwrite", action="store_true", help="replace files in WORK that LinGlue did not make, too")


def add_work(parser: argparse.ArgumentParser) -> None:
    """The work folder of earlier stages."""
    parser.add_argument("work", type=Path, metavar="WORK", help="work folder of `linglue extract`")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """`--weights`: a network of the user's own."""
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="your own network instead of the one in the package"
    )


def add_effort(parser: argparse.ArgumentParser) -> None:
    """`--effort`: whether easy pairs may cost less."""
    parser.add_argument(
        "--effort",
        choices=("adaptive", "full"),
        default="adaptive",
        help="adaptive: easy and clearly unrelated pairs are matched without the network; full: all pairs with it",
    )


def add_matching(parser: argparse.ArgumentParser) -> None:
    """--matcher, --weights, --min-score and --effort: `matcher_config` makes a MatcherConfig of them."""
    parser.add_argument(
        "--matcher",
        default="linglue",
        metavar="NAME",
        help="linglue, linglue-full, linglue-fast, mnn, ratio, adalam, lightglue, or package:Name of your own",
    )
    add_weights(parser)
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="S",
        help="matches less likely right than this, of 0 to 1, are dropped; unless given, as suits pose estimation",
    )
    add_effort(parser)


def matcher_config(options: argparse.Namespace, features: str, device: str) -> MatcherConfig:
    """The matcher that the options of `add_matching` ask for, for features of the kind `features`."""
    from linglue.matcher import MatcherConfig
    from linglue.matching.match import MatchingConfig

    matching = MatchingConfig(min_score=options.min_score, effort=options.effort)
    return MatcherConfig(options.matcher, features, options.weights, device, matching)


def add_engine(
    parser: argparse.ArgumentParser, workers: str = "as many as cores, at most 8,", ship_images: bool = True
) -> None:
    """`--workers`, `--engine` and its options; read them with `engine`.

    Args:
        parser: of the command.
        workers: for people: processes of the pool unless given.
        ship_images: whether the images that the workers read can be shipped to them.
    """
    parser.add_argument(
        "--workers", type=int, metavar="N", help=f"processes; {workers} unless given, with Ray all its cores"
    )
    parser.add_argument(
        "--engine", choices=("pool", "ray"), default="pool", help="processes of this machine, or Ray: many machines"
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head node of the Ray cluster, or auto: the one this machine has joined; a Ray of its own unless given",
    )
    if ship_images:
        parser.add_argument(
            "--ship-images",
            action="store_true",
            help="send images to the nodes of Ray instead of reading them by path, from storage that all share",
        )


def engine(options: argparse.Namespace, device: str, workers: int | None = None) -> Engine:
    """Where the work is done, as --engine, --workers, --address and --ship-images say; a cluster is joined at once.

    Args:
        options: of the command.
        device: that the work needs.
        workers: processes of the pool unless given; None: as many as suit the device.
    """
    from linglue.core.pool import Pool, default_workers

    if options.workers is not None and options.workers < 1:
        raise LinGlueError(f"--workers is {options.workers}, expected at least 1")
    ship_images = getattr(options, "ship_images", False)
    if options.engine == "pool":
        for option, value in (("--address", options.address), ("--ship-images", ship_images)):
            if value:
                raise LinGlueError(f"{option} is given, expected only with --engine ray")
        return Pool(options.workers or workers or default_workers(device))
    from linglue.core.ray_engine import Ray

    ray = Ray(options.workers, options.address, device, ship_images)
    ray.connect()
    return ray


def extract_config(options: argparse.Namespace, device: str) -> ExtractConfig:
    """The pipeline's configuration from --features, --max-keypoints and their like, checked."""
    from linglue.sfm.extract import ExtractConfig

    return ExtractConfig(
        features=options.features,
        weights=options.extractor_weights,
        max_keypoints=options.max_keypoints,
        resize=longer_side(options),
        tile=options.tile,
        device=device,
    )


def check_work(folder: Path) -> Workspace:
    """The work folder of earlier stages."""
    from linglue.sfm.workspace import Workspace

    work = Workspace(folder)
    if not work.features_file.is_file():
        raise LinGlueError(f"{folder}: holds no {work.features_file.name}, expected a folder of `linglue extract`")
    return work


@contextmanager
def stored_matches(work: Workspace) -> Iterator[MatchStore | None]:
    """The matches of a work folder, open; None where there are none yet: commands that only read make nothing."""
    if not work.matches_file.is_file():
        yield None
        return
    with work.matches() as matches:
        yield matches


def model_problems(work: Workspace) -> list[str]:
    """A line if the model of a work folder is not what its features and matches would give."""
    from linglue.sfm.current import current_state, model_state

    with work.features() as features, stored_matches(work) as matches:
        state = model_state(work, features, current_state(work, features, matches))
    return [] if state in ("current", None) else [f"the model is {state}"]


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`; read it with `device`."""
    parser.add_argument("--device", help="cpu or cuda; the GPU if there is one, unless given")


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`; `Report` obeys it."""
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, all else on standard error"
    )


def device(options: argparse.Namespace) -> str:
    """The device to compute on, checked: torch's own errors come late and over many lines."""
    import torch

    name: str = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise LinGlueError(f"--device is {name!r}, which cannot be used; expected cpu, or cuda with a GPU") from error
    return name


def longer_side(options: argparse.Namespace) -> int | None:
    """The library's `resize` from --resize, where 0 asks for the original size."""
    return options.resize or None


def check_output(path: Path | None, suffixes: tuple[str, ...]) -> None:
    """Refuse an output file that could not be written before any work is done."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise LinGlueError(f"{path}: output ends in {path.suffix or 'nothing'}, expected {', '.join(suffixes)}")
    if path.is_dir():
        raise LinGlueError(f"{path}: is a folder, expected a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise LinGlueError(f"{path}: the folder {folder} does not exist, expected a file in an existing one")
    if not os.access(folder, os.W_OK):
        raise LinGlueError(f"{path}: no permission to write into {folder}, expected a writable folder")


def check_folder(path: Path) -> None:
    """Refuse an output folder that could not be made or written into before any work is done."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise LinGlueError(f"{path}: cannot be made a folder ({existing} is a file or not writable)")


def check_outputs(inputs: Iterable[str | Path | None], outputs: Iterable[str | Path | None]) -> None:
    """Refuse any output that is an input or another output: the same file by any path, symbolic or hard link.

    Args:
        inputs: Files and folders that are read; None is skipped.
        outputs: Files and folders that are to be written; None is skipped.
    """
    read = {_identity(Path(path)): path for path in inputs if path is not None}
    written: dict[object, str | Path] = {}
    for path in outputs:
        if path is None:
            continue
        identity = _identity(Path(path))
        if identity in read:
            raise LinGlueError(f"{path}: output is the same file as the input {read[identity]}, expected another")
        if identity in written:
            raise LinGlueError(f"{path}: output is the same file as the output {written[identity]}, expected another")
        written[identity] = path


def _identity(path: Path) -> object:
    """Equal for all paths of one file or folder; one that does not exist yet is where its folder is."""
    resolved = Path(os.path.realpath(path))
    for existing, name in ((resolved, ""), (resolved.parent, resolved.name)):
        try:
            state = existing.stat()
        except OSError:
            continue
        return state.st_dev, state.st_ino, name
    return str(resolved)


class Report:
    """Collects the facts of a run: a line each for people, or one JSON object at the end.

    Args:
        as_json: lines go to standard error, and `finish` prints the object on standard output.

    Example:
        >>> report = Report(as_json=False)
        >>> report.line("12 matches", matches=12)
        12 matches
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._facts: dict[str, Any] = {}

    def line(self, text: str, **facts: Any) -> None:
        """Something a person reads now, and the same facts for machines."""
        self._facts.update(facts)
        if verbosity() is not Verbosity.QUIET:
            print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def finish(self) -> None:
        """Print the JSON object, if that was asked for."""
        if self._as_json:
            print(json.dumps(self._facts))
