"""What flows through LinGlue: feature sets and matches, validated once, here.

Both hold plain numpy arrays on the CPU; the network moves them to its own device. Conventions: docs/conventions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from linglue.errors import LinGlueError

FloatArray = NDArray[np.float32]
IndexArray = NDArray[np.int64]


TWO_CIRCLES = 12.6  # radians: angles that were added up stay within, degrees do not
MARGIN = 0.25  # of a side: keypoints farther outside their image belong to another size, or have x and y swapped
PAIR_EVIDENCE = 20.0  # summed match scores at which a pair is more likely right than not


class ImageSize(NamedTuple):
    """Size of an image in pixels, always in this order.

    Example:
        >>> ImageSize(640, 480).width
        640
    """

    width: int
    height: int


def _as_float32(name: str, values: ArrayLike | torch.Tensor, shape: tuple[int | None, ...]) -> FloatArray:
    """`values` as a contiguous float32 array of the given shape (None: any length), or a LinGlueError naming it."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().float().numpy()
    array = np.ascontiguousarray(values, dtype=np.float32)
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise LinGlueError(f"{name} has shape {array.shape}, expected ({wanted})")
    if not np.isfinite(array).all():
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise LinGlueError(f"{name} contains {bad} NaN or infinite values, expected finite numbers only")
    return array


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Keypoints of one image and their descriptors.

    Built by keyword from numpy arrays or torch tensors. `scores` default to ones; `scales` and `oris` stay None when
    the detector has none.

    Example:
        >>> Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480), kind="mine")
        Features(1 mine keypoints of 2 numbers, image 640x480)
    """

    keypoints: FloatArray  # (N, 2) x, y in pixels of the original image; centre of the top-left pixel is (0, 0)
    descriptors: FloatArray  # (N, D)
    image_size: ImageSize  # (width, height) of the original image
    scores: FloatArray = None  # type: ignore[assignment]  # (N,) detector response, higher is better
    scales: FloatArray | None = None  # (N,) diameter in pixels of the original image
    oris: FloatArray | None = None  # (N,) radians from +x towards +y
    kind: str = "unknown"  # which front-end made them, e.g. "sift"

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("keypoints", _as_float32("keypoints", self.keypoints, (None, 2)))
        n = len(self.keypoints)
        put("descriptors", _as_float32("descriptors", self.descriptors, (n, None)))
        put("scores", _as_float32("scores", np.ones(n) if self.scores is None else self.scores, (n,)))
        for name in ("scales", "oris"):
            value = getattr(self, name)
            put(name, None if value is None else _as_float32(name, value, (n,)))
        if self.scales is not None and n and self.scales.min() <= 0:
            raise LinGlueError(f"scales contain {self.scales.min()}, expected positive diameters in pixels")
        size = [int(v) for v in np.asarray(self.image_size).reshape(-1)]
        if len(size) != 2 or min(size) < 1:
            raise LinGlueError(f"image_size is {size}, expected (width, height) with both at least 1")
        put("image_size", ImageSize(*size))
        self._check_ranges()

    def _check_ranges(self) -> None:
        """Numbers that are there but cannot be meant: other units, another image."""
        if len(self) == 0:
            return
        if self.oris is not None and np.abs(self.oris).max() > TWO_CIRCLES:
            raise LinGlueError(
                f"oris contain {self.oris[np.abs(self.oris).argmax()]:.4g}, expected radians, not degrees"
            )
        margin = MARGIN * np.array(self.image_size) + 1  # (2,)
        beyond = np.maximum(-margin - self.keypoints, self.keypoints - (self.image_size + margin)).max(axis=1)  # (N,)
        if beyond.max() > 0:
            x, y = self.keypoints[beyond.argmax()]
            raise LinGlueError(
                f"keypoint ({x:.0f}, {y:.0f}) lies outside the image, expected (x, y) within image_size "
                f"{self.image_size.width}x{self.image_size.height}"
            )

    def __repr__(self) -> str:
        size = self.image_size
        return f"Features({len(self)} {self.kind} keypoints of {self.dim} numbers, image {size.width}x{size.height})"

    def __len__(self) -> int:
        return len(self.keypoints)

    @property
    def dim(self) -> int:
        """Length of a descriptor."""
        return int(self.descriptors.shape[1])

    def select(self, index: NDArray[Any]) -> Features:
        """The keypoints at `index`.

        Args:
            index: integers in the wanted order, or a boolean mask.

        Returns:
            A new feature set; this one stays as it is.

        Example:
            >>> two = Features(keypoints=[[3, 4], [5, 6]], descriptors=[[1, 0], [0, 1]], image_size=(640, 480))
            >>> two.select(np.array([1])).keypoints.tolist()
            [[5.0, 6.0]]
        """
        return replace(
            self,
            keypoints=self.keypoints[index],
            descriptors=self.descriptors[index],
            scores=self.scores[index],
            scales=None if self.scales is None else self.scales[index],
            oris=None if self.oris is None else self.oris[index],
        )

    def strongest(self, count: int | None) -> Features:
        """The `count` keypoints of highest score, best first; all of them in their order if there are no more.

        Args:
            count: at most so many; None: all.

        Returns:
            A new feature set, or this one if there is nothing to leave out.

        Example:
            >>> ends = {"keypoints": [[3, 4], [5, 6]], "descriptors": [[1, 0], [0, 1]], "image_size": (640, 480)}
            >>> two = Features(**ends, scores=[0.1, 0.9])
            >>> two.strongest(1).keypoints.tolist()
            [[5.0, 6.0]]
        """
        if count is None or len(self) <= count:
            return self
        return self.select(np.argsort(-self.scores, kind="stable")[:count])

    def tensors(self, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """The entry of one image in the network's input dictionary, batch size 1.

        Args:
            device: where the tensors go.

        Returns:
            By name: keypoints, descriptors, image_size and, where known, scales and oris; each with a leading 1.

        Example:
            >>> one = Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480))
            >>> one.tensors()["keypoints"].shape
            torch.Size([1, 1, 2])
        """
        entry: dict[str, ArrayLike] = {
            "keypoints": self.keypoints,
            "descriptors": self.descriptors,
            "image_size": np.asarray(self.image_size, dtype=np.float32),
        }
        if self.scales is not None:
            entry["scales"] = self.scales
        if self.oris is not None:
            entry["oris"] = self.oris
        return {name: torch.as_tensor(value, device=device)[None] for name, value in entry.items()}


def pair_score(scores: NDArray[Any]) -> float:
    """In [0, 1]: how sure we are that two images with these match scores (K,) show the same thing at all."""
    return float(1 - np.exp2(-scores.sum(dtype=np.float64) / PAIR_EVIDENCE))


@dataclass(frozen=True, eq=False, repr=False)
class Matches:
    """One-to-one matches between the feature sets of image 0 and image 1, best score first.

    Example:
        >>> one = Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480), kind="mine")
        >>> Matches.of(one, one, [[0, 0]], [0.9])
        Matches(1 matches between 1 and 1 mine keypoints, pair score 0.03)
    """

    points0: FloatArray  # (K, 2) pixels of the original image 0
    points1: FloatArray  # (K, 2) pixels of the original image 1
    indices: IndexArray  # (K, 2) into the two feature sets
    scores: FloatArray  # (K,) in [0, 1]
    features0: Features
    features1: Features
    pair_score: float = 0.0  # in [0, 1]: how sure we are that the two images show the same thing at all
    timing: Mapping[str, float] = field(default_factory=dict)  # seconds per stage
    image0: Path | NDArray[np.uint8] | None = None  # what was matched, kept for drawing
    image1: Path | NDArray[np.uint8] | None = None

    @classmethod
    def of(
        cls,
        features0: Features,
        features1: Features,
        indices: ArrayLike | torch.Tensor,
        scores: ArrayLike | torch.Tensor,
        **extra: Any,
    ) -> Matches:
        """Matches from indices (K, 2) into two feature sets and scores (K,), best first, of any matcher.

        Args:
            features0: features of image 0.
            features1: features of image 1.
            indices: (K, 2), one row per match.
            scores: (K,) in [0, 1].
            extra: other fields, such as `timing`.

        Returns:
            The matches, with the points they join and the score of the pair.

        Example:
            >>> one = Features(keypoints=[[3, 4]], descriptors=[[1, 0]], image_size=(640, 480))
            >>> Matches.of(one, one, [[0, 0]], [0.9]).points1.tolist()
            [[3.0, 4.0]]
        """
        pairs, values = (v.cpu().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for v in (indices, scores))
        pairs, values = pairs.astype(np.int64).reshape(-1, 2), values.astype(np.float32).reshape(-1)
        return cls(
            points0=features0.keypoints[pairs[:, 0]],
            points1=features1.keypoints[pairs[:, 1]],
            indices=pairs,
            scores=values,
            features0=features0,
            features1=features1,
            pair_score=pair_score(values),
            **extra,
        )

    def __repr__(self) -> str:
        kind = self.features0.kind
        return (
            f"Matches({len(self)} matches between {len(self.features0)} and {len(self.features1)} {kind} keypoints, "
            f"pair score {self.pair_score:.2f})"
        )

    def __len__(self) -> int:
        return len(self.indices)

    def draw(self, path: str | Path, max_lines: int | None = 200) -> None:
        """Write a picture of the matches, coloured by score; needs the images, so not after matching bare Features.

        Args:
            path: .png, .jpg or .webp.
            max_lines: At most so many are drawn, spread over the image, the confident ones first; None: all.

        Example:
            >>> matches.draw("matches.png")  # doctest: +SKIP
        """
        from linglue.viz import save_drawing

        save_drawing(path, self, max_lines)
