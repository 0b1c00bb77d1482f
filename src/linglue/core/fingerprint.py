"""What a result was made from, in one short text: the one notion of "current" that every stage and cache shares.

A stored result is current when its fingerprint is the one that its inputs give today: content of the image and its
mask, front-end with its weights wherever they came from, settings, network, and the version of our own format.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linglue.errors import LinGlueError

PACKAGE = Path(__file__).resolve().parent.parent
FORMAT = 3  # of our own results: raise it when the same inputs come to mean other features, matches or files


def fingerprint(**parts: Any) -> str:
    """32 hexadecimal digits that differ when any part, or our own format, does.

    Args:
        parts: JSON values of all that decides a result.

    Example:
        >>> fingerprint(image="a", keypoints=10) == fingerprint(keypoints=10, image="a")
        True
    """
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def features_fingerprint(front_end: Mapping[str, Any], image_sha256: str, mask_sha256: str | None = None) -> str:
    """Of the features of one image.

    Args:
        front_end: all that decides them beside the image, weights included (see `weights_sha256`).
        image_sha256: content of the image file.
        mask_sha256: content of its mask, if it has one.
    """
    return fingerprint(front_end=dict(front_end), image=image_sha256, mask=mask_sha256)


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would never end
            raise OSError(errno.EINVAL, "not a regular file")
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror}), expected a readable file") from error


def arrays_sha256(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of named numpy arrays; None counts as absent."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        if array is not None:
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def weights_sha256(model: Any) -> str | None:
    """SHA-256 of all weights that an object holds in its modules, wherever they were loaded from; None without any.

    Args:
        model: a `torch.nn.Module`, or an object such as an `Extractor` that has some as attributes.
    """
    parts = {"": model} if hasattr(model, "state_dict") else dict(getattr(model, "__dict__", {}))
    arrays = {
        f"{part}.{name}": tensor.detach().cpu().numpy()
        for part, module in parts.items()
        if hasattr(module, "state_dict")
        for name, tensor in module.state_dict().items()
    }
    return arrays_sha256(arrays) if arrays else None


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
