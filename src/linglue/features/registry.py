"""The front-ends by name: facts to choose by, readable without torch, and `make_extractor`, which loads one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.core.registry import Registry
from linglue.errors import LinGlueError

if TYPE_CHECKING:
    from linglue.features.base import Extractor

DEFAULT_FEATURES = "linpoint"  # the front-end of every command and function that is not told another
MAX_KEYPOINTS = 4096  # defaults of extraction, in Python and on the command line
RESIZE = 1600  # longer side in pixels


@dataclass(frozen=True)
class Download:
    """A weights file that users can fetch."""

    file: str  # its name in torch's cache
    url: str
    sha256: str
    terms: str = ""  # what the user must accept first


@dataclass(frozen=True)
class FrontEnd:
    """What a user must know to choose a front-end; readable without loading it.

    Example:
        >>> FRONT_ENDS["linpoint"].needs_weights
        False
    """

    name: str  # also Features.kind of what it extracts
    dim: int  # descriptor length
    licence: str  # of code and weights together
    needs_weights: bool  # whether it reads a weights file that the package does not carry
    weights_source: str = ""  # that file and where users get it
    download: Download | None = None  # that file for `linglue models --fetch`


FRONT_ENDS: dict[str, FrontEnd] = {
    front_end.name: front_end
    for front_end in (
        FrontEnd("linpoint", 64, "Apache-2.0 (LinGlue's own code and weights)", needs_weights=False),
        FrontEnd("sift", 128, "Apache-2.0 (OpenCV; the SIFT patent has expired)", needs_weights=False),
        FrontEnd(
            "superpoint",
            256,
            "code Apache-2.0; weights: Magic Leap, non-commercial research use only",
            needs_weights=True,
            weights_source="superpoint_v1.pth from https://github.com/magicleap/SuperPointPretrainedNetwork "
            "(non-commercial research licence)",
            download=Download(
                "superpoint_v1.pth",
                "https://raw.githubusercontent.com/magicleap/SuperPointPretrainedNetwork/master/superpoint_v1.pth",
                "52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
                terms="superpoint_v1.pth is licensed by Magic Leap, Inc. for academic or non-profit organisations and "
                "non-commercial research use only, see "
                "https://github.com/magicleap/SuperPointPretrainedNetwork/blob/master/LICENSE",
            ),
        ),
        FrontEnd(
            "aliked",
            128,
            "BSD-3-Clause (ALIKED), Apache-2.0 (kornia)",
            needs_weights=True,
            weights_source="aliked-n16.pth from https://github.com/Shiaoming/ALIKED/tree/main/models",
            download=Download(
                "aliked-n16.pth",
                "https://raw.githubusercontent.com/Shiaoming/ALIKED/main/models/aliked-n16.pth",
                "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
            ),
        ),
        FrontEnd(
            "disk",
            128,
            "Apache-2.0 (DISK and kornia)",
            needs_weights=True,
            weights_source="depth-save.pth from https://github.com/cvlab-epfl/disk",
            download=Download(
                "depth-save.pth",
                "https://raw.githubusercontent.com/cvlab-epfl/disk/master/depth-save.pth",
                "9c2ee4ded238892dfa51569941372601e35e4a74aa6f84ea80053d2ab1c07abe",
            ),
        ),
    )
}

EXTRACTORS = Registry(
    "front-end",
    "linglue.front_ends",
    {
        "linpoint": "linglue.features.linpoint:LinPoint",
        "sift": "linglue.features.sift:Sift",
        "superpoint": "linglue.features.superpoint:SuperPoint",
        "aliked": "linglue.features.aliked:Aliked",
        "disk": "linglue.features.disk:Disk",
    },
)


def front_end(name: str) -> FrontEnd:
    """The facts of any front-end; only those from other packages are imported for it.

    Args:
        name: as for `make_extractor`.

    Returns:
        Name, descriptor length, licence, and which weights it needs.

    Example:
        >>> front_end("superpoint").dim
        256
    """
    if name in FRONT_ENDS:
        return FRONT_ENDS[name]
    found = _extractor_class(name)
    return FrontEnd(found.kind, found.dim, found.licence, needs_weights=False)


def make_extractor(name: str, weights: str | Path | None = None, device: str = "cpu") -> Extractor:
    """The front-end of that name, ready to extract.

    Args:
        name: one of FRONT_ENDS, one that another package offers, or "package.module:Class".
        weights: its weights file; without, it looks where `linglue models --fetch` and kornia put theirs.
        device: where it computes, "cpu" or "cuda".

    Returns:
        A front-end with its weights loaded.

    Raises:
        LinGlueError: no such front-end, or its weights are missing or do not fit.

    Example:
        >>> make_extractor("sift").dim
        128
    """
    return _extractor_class(name)(weights=weights, device=device)


def _extractor_class(name: str) -> type[Extractor]:
    """The class behind a name, with all that a front-end must have."""
    found = EXTRACTORS.get(name)
    from linglue.features.base import Extractor

    if not (isinstance(found, type) and issubclass(found, Extractor)):
        raise LinGlueError(
            f"front-end {name!r} is a {type(found).__name__}, expected a subclass of linglue.features.base.Extractor"
        )
    missing = [fact for fact in ("kind", "dim", "licence") if not hasattr(found, fact)]
    missing += sorted(found.__abstractmethods__)
    if missing:
        raise LinGlueError(f"front-end {name} lacks {', '.join(missing)}, expected kind, dim, licence and detect")
    return found
