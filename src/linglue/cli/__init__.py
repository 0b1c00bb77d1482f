"""The command line: `linglue COMMAND …`, one file per command."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from linglue.cli import common
from linglue.core.progress import Verbosity, set_verbosity, verbosity
from linglue.errors import LinGlueError, is_out_of_memory

# Only the module of the command that runs is imported: matching must not load training or evaluation.
COMMANDS = {
    "match": "match two images, all images of a folder or a list of pairs, and write or draw the result",
    "extract": "extract the features of a folder of images; what is there already is kept",
    "pairs": "choose which images of a work folder are to be matched",
    "match-pairs": "match the chosen pairs of a work folder; what is there already is kept",
    "reconstruct": "a folder of images to a sparse COLMAP model; killed runs resume where they were",
    "map": "a sparse model from features and matches of a work folder as they stand",
    "status": "what a work folder holds: what is current, what is stale, which images have no pose and why",
    "dense": "dense points of a reconstruction, with colours and normals; killed runs resume where they were",
    "report": "one HTML file about a reconstruction: numbers, the model in 3D, best and worst pairs, times",
    "view": "a reconstruction, or the matches of one pair, in the browser",
    "clean": "remove from a work folder what is not current any more",
    "localize": "camera poses of new images in the model of a work folder",
    "export": "features and matches of a work folder for hloc, COLMAP or numpy",
    "import-hloc": "features of an hloc file into a work folder, to be matched there",
    "match-database": "match the SIFT features of an existing COLMAP database",
    "models": "list what can be loaded: front-ends, networks, licences",
    "demo": "match a real stereo pair with known truth, draw it and count what is right",
    "train": "train a network on a folder of images; killed runs resume where they were",
    "train-features": "train the front-end linpoint on folders of images; killed runs resume where they were",
    "eval": "measure matchers on data with known truth, all on the same keypoints",
}


BROKEN_PIPE = 141  # exit code, as shells have it
USAGE_ERROR = 2  # exit code of wrong options; 1 is of files and values that cannot be used
# Options that name what is written; every other path is read.
OUTPUTS = frozenset(
    {
        "output",
        "docs",
        "draw",
        "plot",
        "hloc_features",
        "hloc_matches",
        "colmap_text",
        "npz",
        "ply",
        "model_text",
        "undistorted",
    }
)


PICTURES = frozenset({"draw", "plot"})  # of these, what could be taken for an input by the next run
MEMORY = ("workers", "resize", "max_keypoints", "tile", "planes", "points")  # options that decide how much is needed


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one; "(default: None)" tells nobody anything."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the options are what --help is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


class Terminated(BaseException):
    """SIGTERM, as Ctrl-C is KeyboardInterrupt: what is open is closed, workers end, a later run resumes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command line; those of the process unless given.

    Returns:
        0: the work was done. 1: it could not be, and standard error says why in one line. 130: Ctrl-C. 143: SIGTERM.
        What argparse refuses ends the process with 2.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):  # names need not be in the terminal's alphabet, nor be text at all
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    chosen = next((a for a in arguments if a in COMMANDS), None)
    name = f"linglue {chosen}" if chosen else "linglue"
    try:
        with _terminated_by_signal():
            _run(chosen, arguments)
    except LinGlueError as error:
        return _failed(f"{name}: {error}", 1)
    except BrokenPipeError:  # whoever read our output has gone, as in `linglue status WORK | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its end
        return BROKEN_PIPE
    except OSError as error:  # disk full, no permission: nothing a traceback would explain better
        return _failed(f"{name}: {error.filename or 'input/output'}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _failed(f"{name}: interrupted", 128 + signal.SIGINT)
    except Terminated:
        return _failed(f"{name}: terminated", 128 + signal.SIGTERM)
    return 0


def _run(chosen: str | None, arguments: Sequence[str]) -> None:
    options = _parser(chosen).parse_args(arguments)
    set_verbosity(Verbosity.QUIET if options.quiet else Verbosity.VERBOSE if options.verbose else Verbosity.NORMAL)
    levels = {Verbosity.QUIET: logging.ERROR, Verbosity.NORMAL: logging.WARNING, Verbosity.VERBOSE: logging.INFO}
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("linglue").setLevel(levels[verbosity()])
    _check_paths(options)
    with warnings.catch_warnings(record=not options.verbose):  # of other packages, about their own insides
        try:
            _module(options.command).run(options)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise LinGlueError(_what_to_lower(options)) from error


def _what_to_lower(options: argparse.Namespace) -> str:
    """For whoever has too little memory, in one line."""
    names = [f"--{name.replace('_', '-')}" for name in MEMORY if hasattr(options, name)]
    if options.command.startswith("train"):
        names = ["batch or keypoints in the file of settings"]
    return f"out of memory, expected {'lower values of ' + ', '.join(names) if names else 'more of it'}"


def _check_paths(options: argparse.Namespace) -> None:
    """No output of any command is one of its inputs, or another output; no picture is written into a folder of images.

    A work folder may be where the images are.
    """
    read: list[str | Path] = []
    written: list[Path] = []
    for name, value in vars(options).items():
        for path in value if isinstance(value, list) else [value]:
            if name in OUTPUTS and isinstance(path, Path) and not path.is_dir():
                written.append(path)
            elif name not in OUTPUTS and isinstance(path, str | Path):
                read += [path, str(path).partition("::")[0]]  # FILE.h5::IMAGE
    common.check_outputs([path for path in read if os.path.lexists(path)], written)
    folders = [path for path in read if Path(path).is_dir()]
    for picture in (getattr(options, name) for name in PICTURES if getattr(options, name, None) is not None):
        for folder in folders:
            if Path(os.path.realpath(picture)).is_relative_to(os.path.realpath(folder)):
                raise LinGlueError(f"{picture}: lies in the input folder {folder}, expected a picture elsewhere")


def _failed(text: str, code: int) -> int:
    print(*text.splitlines(), sep="\\n", file=sys.stderr)  # one line, whatever names of files contain
    return code


@contextmanager
def _terminated_by_signal() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the block; threads other than the main one cannot have handlers."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _module(name: str) -> Any:
    return import_module(f"linglue.cli.{name.replace('-', '_')}")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """All commands by name, the options of the chosen one only."""
    parser = _Parser(prog="linglue", description="Matches keypoints between images.")
    parser.add_argument("--version", action="version", version=f"linglue {version('linglue')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, formatter_class=_HelpFormatter)
        if name == chosen:
            _module(name).add_arguments(command)
            how = command.add_mutually_exclusive_group()
            how.add_argument("-q", "--quiet", action="store_true", help="no progress and no lines but errors")
            how.add_argument("-v", "--verbose", action="store_true", help="progress every few seconds in logs, too")
    return parser
