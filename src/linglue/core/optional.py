"""Packages that not everybody needs: imported when they are used, with one clear line when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from linglue.core.signals import own_sigterm
from linglue.errors import LinGlueError

EXTRAS = {  # package → our extra
    "kornia": "kornia",
    "plotly": "report",
    "poselib": "eval",
    "pycolmap": "sfm",
    "ray": "ray",
    "transformers": "bench",
    "viser": "view",
}


def need(module: str, purpose: str) -> ModuleType:
    """The module, or a LinGlueError that says what needs it and how to get it.

    Args:
        module: its full name, e.g. "kornia.feature".
        purpose: what needs it, for the message, e.g. "front-end aliked".

    Example:
        >>> need("math", "counting").floor(1.5)
        1
    """
    try:
        with own_sigterm():  # pycolmap's log takes it, and answers with a stack trace
            return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        source = f"linglue[{EXTRAS[package]}]" if package in EXTRAS else package
        raise LinGlueError(f"{purpose} needs {package}, which is not installed: pip install {source}") from error
