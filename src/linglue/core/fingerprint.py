"""Fingerprints of what decides a result, so that results of different things are never taken for each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linglue.errors import LinGlueError

PACKAGE = Path(__file__).resolve().parent.parent


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror}), expected a readable file") from error


def code_sha256(*parts: str) -> str:
    """SHA-256 over the package's own source files; `parts` are files or folders below the package."""
    digest = hashlib.sha256()
    for part in parts:
        root = PACKAGE / part
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits that differ when any setting does: the name of the folder for what they produce."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
