"""Packages that only measuring needs: imported when they are used, with one clear line when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from linglue.errors import LinGlueError


def need(module: str, purpose: str) -> ModuleType:
    """The module, or a LinGlueError that says what needs it and how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise LinGlueError(f"{purpose} needs {package}, which is not installed: pip install {package}") from error
