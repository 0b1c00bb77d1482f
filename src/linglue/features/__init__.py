"""Front-ends: images in, `Features` out. One file each, imported only when it is asked for."""

from linglue.features.registry import (
    DEFAULT_FEATURES,
    EXTRACTORS,
    FRONT_ENDS,
    MAX_KEYPOINTS,
    RESIZE,
    FrontEnd,
    front_end,
    make_extractor,
)

__all__ = [
    "DEFAULT_FEATURES",
    "EXTRACTORS",
    "FRONT_ENDS",
    "MAX_KEYPOINTS",
    "RESIZE",
    "FrontEnd",
    "front_end",
    "make_extractor",
]
