"""The command line: `linglue COMMAND …`, one file per command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from linglue.cli import demo, extract, match, models
from linglue.errors import LinGlueError

COMMANDS = {"match": match, "extract": extract, "models": models, "demo": demo}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 only if its work was done. What users did wrong is one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="linglue", description="Matches keypoints between photographs, in time linear in their number."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        module.add_arguments(
            commands.add_parser(
                name, help=summary, description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter
            )
        )
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    try:
        COMMANDS[options.command].run(options)
    except LinGlueError as error:
        print(f"linglue {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"linglue {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0
