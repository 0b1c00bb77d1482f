"""Front-ends: images in, `Features` out. One file each, imported only when it is asked for."""

from linglue.features.registry import DEFAULT_FEATURES, EXTRACTORS, FRONT_ENDS, FrontEnd, front_end, make_extractor

MAX_KEYPOINTS = 4096  # defaults of extraction, in Python and on the command line
RESIZE = 1600  # longer side in pixels

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
