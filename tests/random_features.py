"""Features of an image that nobody took, for tests of files and stores."""

import numpy as np

from linglue.types import Features, ImageSize


def random_features(count: int, dim: int = 8, seed: int = 0, full: bool = True, kind: str = "sift") -> Features:
    """`count` keypoints in an image of 5000 x 4000 pixels; those that are not `full` lack scales and orientations."""
    random = np.random.default_rng(seed)

    def draw(low: float, high: float, *shape: int) -> np.ndarray:
        return random.uniform(low, high, shape).astype(np.float32)

    return Features(
        keypoints=draw(0, 3999, count, 2),
        descriptors=random.normal(size=(count, dim)).astype(np.float32),
        image_size=ImageSize(5000, 4000),
        scores=draw(0, 1, count),
        scales=draw(1, 9, count) if full else None,
        oris=draw(0, 6, count) if full else None,
        kind=kind,
    )
