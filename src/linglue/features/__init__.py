"""Front-ends: images in, `Features` out. One small adapter each, imported only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.errors import LinGlueError

if TYPE_CHECKING:
    from linglue.features.base import Extractor

MAX_KEYPOINTS = 4096  # defaults of extraction, in Python and on the command line
RESIZE = 1600  # longer side in pixels


@dataclass(frozen=True)
class FrontEnd:
    """What a user must know to choose a front-end; readable without loading it."""

    name: str  # also Features.kind of what it extracts
    dim: int  # descriptor length
    licence: str  # of code and weights together
    needs_weights: bool  # whether it reads a weights file that the package does not carry
    weights_source: str = ""  # that file and where users get it


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
        ),
        FrontEnd(
            "aliked",
            128,
            "BSD-3-Clause (ALIKED), Apache-2.0 (kornia)",
            needs_weights=True,
            weights_source="aliked-n16.pth from https://github.com/Shiaoming/ALIKED/tree/main/models",
        ),
        FrontEnd(
            "disk",
            128,
            "Apache-2.0 (DISK and kornia)",
            needs_weights=True,
            weights_source="depth-save.pth from https://github.com/cvlab-epfl/disk",
        ),
    )
}


def make_extractor(name: str, weights: str | Path | None = None, device: str = "cpu") -> Extractor:
    """The front-end of that name. `weights` is its weights file; aliked and disk also find kornia's cached one."""
    if name not in FRONT_ENDS:
        raise LinGlueError(f"front-end is {name!r}, expected {', '.join(FRONT_ENDS)}")
    if name == "linpoint":
        from linglue.features.linpoint import LinPoint

        return LinPoint(weights, device=device)
    if name == "sift":
        if weights is not None:
            raise LinGlueError(f"front-end sift got the weights file {weights}, expected none: it has no weights")
        from linglue.features.sift import Sift

        return Sift()
    if name == "superpoint":
        if weights is None:
            raise LinGlueError(f"front-end superpoint needs a weights file: {FRONT_ENDS[name].weights_source}")
        from linglue.features.superpoint import SuperPoint

        return SuperPoint(weights, device=device)
    from linglue.features.kornia_frontends import Aliked, Disk

    return Aliked(weights, device=device) if name == "aliked" else Disk(weights, device=device)
