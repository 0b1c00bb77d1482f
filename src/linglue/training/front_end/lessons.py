"""What a teacher sees in clean images, computed once and kept: where keypoints are and what describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import file_sha256
from linglue.core.progress import progress
from linglue.features.base import Extractor
from linglue.features.linpoint import fused, load_linpoint
from linglue.io.images import Image, read_image, shrink
from linglue.training.front_end.steady import steady

LONGER_SIDE = 800  # pixels at which teacher and student see an image


@dataclass(frozen=True, eq=False)
class Lesson:
    """Keypoints of one image, strongest first."""

    keypoints: NDArray[np.float32]  # (N, 2) pixels of the image at LONGER_SIDE
    scores: NDArray[np.float32]  # (N,) in [0, 1]
    descriptors: NDArray[np.float16]  # (N, D)


class Lessons(Sequence[Lesson]):
    """Lessons about images, in a folder: one file for each, named by the contents of image and teacher.

    Args:
        folder: where they are kept; may serve many runs.
        images: what is looked at.
        teacher_sha256: of the teacher's weights.
        keypoints: of an image.
        aside: pixels by which the teacher puts keypoints right of and below what they are of.
        steady: weights of a student; keypoints are where it sees them from all sides, others are left out.
    """

    def __init__(
        self,
        folder: Path,
        images: Sequence[Path],
        teacher_sha256: str,
        keypoints: int = 1536,
        aside: float = 0.0,
        steady: Path | None = None,
    ) -> None:
        self.images = list(images)
        self.keypoints = keypoints
        self.aside = aside
        self._steady = steady
        self._folder = folder
        contents = [file_sha256(image)[:16] for image in self.images]
        self._taught = [folder / f"{teacher_sha256[:8]}-{keypoints}-{content}.npz" for content in contents]
        self._files = self._taught
        if steady is not None:
            name = f"{teacher_sha256[:8]}-{keypoints}-{aside:g}-{file_sha256(steady)[:8]}"
            self._files = [folder / f"{name}-{content}.npz" for content in contents]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Lesson:  # type: ignore[override]
        lesson = _read(self._files[index])
        return lesson if self._steady else self._upright(lesson)

    @property
    def fingerprint(self) -> str:
        """Differs when an image, the teacher, the number of keypoints or where they are does."""
        parts = [*(file.name for file in self._files), repr(self.aside)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def prepare(self, teacher: Extractor) -> None:
        """Let the teacher look at every image without a lesson, and then the student that says where things are."""
        self._folder.mkdir(parents=True, exist_ok=True)

        def look(index: int) -> Lesson:
            found = teacher.extract(self._image(index), self.keypoints)
            return Lesson(found.keypoints, found.scores, found.descriptors.astype(np.float16))

        self._make(self._taught, look, "lessons")
        if self._steady is None:
            return
        net = fused(load_linpoint(self._steady)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def steadied(index: int) -> Lesson:
            before = self._upright(_read(self._taught[index]))
            places, share = steady(net, self._image(index), before.keypoints)
            kept = np.isfinite(places[:, 0])
            return Lesson(places[kept], (before.scores * share)[kept], before.descriptors[kept])

        self._make(self._files, steadied, "steady")

    def _make(self, files: Sequence[Path], make: Callable[[int], Lesson], said: str) -> None:
        """Those of the files that are not there."""
        missing = [i for i, file in enumerate(files) if not file.is_file()]
        with progress(total=len(files), initial=len(files) - len(missing), desc=said, unit="image") as bar:
            for i in missing:
                lesson = make(i)
                with atomic_path(files[i]) as partial:
                    scores = lesson.scores.astype(np.float16)
                    np.savez(partial, keypoints=lesson.keypoints, scores=scores, descriptors=lesson.descriptors)
                bar.update()

    def _image(self, index: int) -> Image:
        return shrink(read_image(self.images[index]), LONGER_SIDE)

    def _upright(self, lesson: Lesson) -> Lesson:
        """Without what the teacher puts aside."""
        return replace(lesson, keypoints=lesson.keypoints - np.float32(self.aside))


def _read(file: Path) -> Lesson:
    with np.load(file) as arrays:
        return Lesson(arrays["keypoints"], arrays["scores"].astype(np.float32), arrays["descriptors"])
