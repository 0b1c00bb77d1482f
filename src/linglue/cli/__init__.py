"""The command line: `linglue COMMAND …`, one file per command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

from linglue.core.progress import Verbosity, set_verbosity, verbosity
from linglue.errors import LinGlueError

# Only the module of the command that runs is imported: matching must not load training or evaluation.
COMMANDS = {
    "match": "match two photographs (or two feature files) and write or draw the result",
    "extract": "extract the features of a folder of photographs; what is there already is kept",
    "pairs": "choose which photographs of a work folder are to be matched",
    "match-pairs": "match the chosen pairs of a work folder; what is there already is kept",
    "reconstruct": "a folder of photographs to a sparse COLMAP model; killed runs go on where they were",
    "map": "a sparse model from features and matches of a work folder as they stand",
    "status": "what a work folder holds: what is current, what is stale, which images have no pose and why",
    "report": "one HTML file about a reconstruction: numbers, the model in 3D, best and worst pairs, times",
    "view": "a reconstruction, or the matches of one pair, in the browser",
    "clean": "remove from a work folder what is not current any more",
    "localize": "camera poses of new photographs in the model of a work folder",
    "export": "features and matches of a work folder for hloc, COLMAP or numpy",
    "import-hloc": "features of an hloc file into a work folder, to be matched there",
    "match-database": "match the SIFT features of an existing COLMAP database",
    "models": "list what can be loaded: front-ends, networks, licences",
    "demo": "match a real stereo pair with known truth, draw it and count what is right",
    "train": "train a network on a folder of photographs; killed runs go on where they were",
    "train-features": "train the front-end linpoint on folders of images; killed runs resume where they were",
    "eval": "measure matchers on data with known truth, all on the same keypoints",
}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one; "(default: None)" tells nobody anything."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 only if its work was done. What users did wrong is one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((a for a in arguments if a in COMMANDS), None)
    options = _parser(chosen).parse_args(arguments)
    set_verbosity(Verbosity.QUIET if options.quiet else Verbosity.VERBOSE if options.verbose else Verbosity.NORMAL)
    levels = {Verbosity.QUIET: logging.ERROR, Verbosity.NORMAL: logging.WARNING, Verbosity.VERBOSE: logging.INFO}
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("linglue").setLevel(levels[verbosity()])
    try:
        _module(options.command).run(options)
    except LinGlueError as error:
        print(f"linglue {options.command}: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # disk full, no permission: nothing a traceback would explain better
        print(f"linglue {options.command}: {error.filename or 'input/output'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"linglue {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def _module(name: str) -> Any:
    return import_module(f"linglue.cli.{name.replace('-', '_')}")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """All commands by name, the options of the chosen one only."""
    parser = argparse.ArgumentParser(prog="linglue", description="Matches keypoints between photographs.")
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
