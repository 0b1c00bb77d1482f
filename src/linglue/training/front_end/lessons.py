"""What a teacher sees in clean images, computed once and kept: where keypoints are and what describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import file_sha256
from linglue.core.progress import progress
from linglue.features.base import Extractor
from linglue.io.images import read_image, shrink

LONGER_SIDE = 800  # pixels at which teacher and student see an image


@dataclass(frozen=True, eq=False)
class Lesson:
    """Keypoints of one image, strongest first."""

    keypoints: NDArray[np.float32]  # (N, 2) pixels of the image at LONGER_SIDE
    scores: NDArray[np.float32]  # (N,) in [0, 1]
    descriptors: NDArray[np.float16]  # (N, D)


class Lessons(Sequence[Lesson]):
    """Lessons about images, in a folder: one file for each, named by the contents of image and teacher."""

    def __init__(
        self, folder: Path, images: Sequence[Path], teacher_sha256: str, keypoints: int = 1536, aside: float = 0.0
    ) -> None:
        self.images = list(images)
        self.keypoints = keypoints
        self.aside = aside
        self._files = [
            folder / f"{teacher_sha256[:8]}-{keypoints}-{file_sha256(image)[:16]}.npz" for image in self.images
        ]
        self._folder = folder

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Lesson:  # type: ignore[override]
        with np.load(self._files[index]) as arrays:
            keypoints = arrays["keypoints"] - np.float32(self.aside)
            return Lesson(keypoints, arrays["scores"].astype(np.float32), arrays["descriptors"])

    @property
    def fingerprint(self) -> str:
        """Differs when an image, the teacher, the number of keypoints or where they are does."""
        parts = [*(file.name for file in self._files), repr(self.aside)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def prepare(self, teacher: Extractor) -> None:
        """Let the teacher look at every image that has no lesson yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = [i for i, file in enumerate(self._files) if not file.is_file()]
        with progress(total=len(self), initial=len(self) - len(missing), desc="lessons", unit="image") as bar:
            for i in missing:
                found = teacher.extract(shrink(read_image(self.images[i]), LONGER_SIDE), self.keypoints)
                with atomic_path(self._files[i]) as partial:
                    np.savez(
                        partial,
                        keypoints=found.keypoints,
                        scores=found.scores.astype(np.float16),
                        descriptors=found.descriptors.astype(np.float16),
                    )
                bar.update()
