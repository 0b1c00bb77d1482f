"""The command line: `linglue COMMAND …`, one file per command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

from linglue.cli import demo, extract, match, models
from linglue.errors import LinGlueError

COMMANDS = {"match": match, "extract": extract, "models": models, "demo": demo}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one; "(default: None)" tells nobody anything."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 only if its work was done. What users did wrong is one line on standard error."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    try:
        COMMANDS[options.command].run(options)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="linglue", description="Matches keypoints between photographs.")
    parser.add_argument("--version", action="version", version=f"linglue {version('linglue')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary, formatter_class=_HelpFormatter)
        module.add_arguments(command)
    return parser
