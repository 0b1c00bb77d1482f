"""Predictions are saved, one file per pair and method; scores are computed from these files and nothing else.

    WORK/features/HASH/settings.json, GROUP/IMAGE.npz
    WORK/predictions/METHOD-HASH/settings.json, GROUP/IMAGE0/IMAGE1.npz

HASH stands for all settings that decide the content, so other settings lead to other folders. A file is made when it
is missing or older than its images; a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import code_sha256, file_sha256, settings_hash
from linglue.errors import LinGlueError
from linglue.evaluation.methods import Method
from linglue.features import make_extractor
from linglue.features.base import Extractor
from linglue.io.npz import load_features, save_features
from linglue.types import Features, FloatArray, ImageSize

PROGRESS_DELAY = 2.0  # seconds after which a progress bar appears

# Names under which kornia caches the weights of front-ends that are used without --extractor-weights.
_CACHED_WEIGHTS = {"aliked": "aliked-n16.pth", "disk": "depth-save.pth"}


@dataclass(frozen=True)
class Pair:
    """Two images of one group (sequence or scene)."""

    group: str
    image0: Path
    image1: Path

    @property
    def name(self) -> str:
        """For people; files are named by group and images apart."""
        return f"{self.group} {self.image0.stem}-{self.image1.stem}"


@dataclass(frozen=True)
class Extraction:
    """How features are extracted."""

    features: str = "sift"
    extractor_weights: Path | None = None
    max_keypoints: int = 2048
    resize: int | None = 1024  # longer side in pixels; None: original
    tile: int | None = None

    def settings(self, data: Path) -> dict[str, Any]:
        """All that decides the features of the images below the folder `data`."""
        weights = self.extractor_weights
        if weights is None and self.features in _CACHED_WEIGHTS:
            weights = Path(torch.hub.get_dir()) / "checkpoints" / _CACHED_WEIGHTS[self.features]
        return {
            **asdict(self),
            "extractor_weights": None,  # where the file lies does not matter, what it holds does
            "extractor_weights_sha256": None if weights is None else file_sha256(weights),
            "data": str(data.resolve()),
            "code": code_sha256("features", "geometry/pixels.py", "io/images.py", "types.py"),
        }


@dataclass(frozen=True, eq=False)
class Prediction:
    """What one method found in one pair, as saved."""

    points0: FloatArray  # (K, 2) pixels of the original image 0
    points1: FloatArray  # (K, 2) pixels of the original image 1
    scores: FloatArray  # (K,)
    image_size0: ImageSize
    image_size1: ImageSize
    keypoints: tuple[int, int]  # numbers in the two images
    seconds: float  # matching alone, features given


class Store:
    """The files of one data set (a folder with images) in a work folder."""

    def __init__(self, work: Path, data: Path, extraction: Extraction) -> None:
        self.work = work
        self.extraction = extraction
        self.extraction_settings = extraction.settings(data)
        self._features_folder = work / "features" / settings_hash(self.extraction_settings)
        self._extractor: Extractor | None = None

    def method_settings(self, method: Method) -> dict[str, Any]:
        """All that decides the predictions of a method."""
        return {"method": method.name, **method.settings, "extraction": self.extraction_settings}

    def folder(self, method: Method) -> Path:
        """Where the predictions of a method are."""
        return self.work / "predictions" / f"{method.name}-{settings_hash(self.method_settings(method))}"

    def path(self, method: Method, pair: Pair) -> Path:
        """The file of one prediction."""
        return self.folder(method) / pair.group / pair.image0.name / f"{pair.image1.name}.npz"

    def predict(self, pairs: Sequence[Pair], methods: Sequence[Method], device: str = "cpu") -> int:
        """Make the predictions that are missing; returns how many were. All methods of a pair run one after another,
        so that a change of the machine's load hits all of them alike."""
        for method in methods:
            _claim(self.folder(method), self.method_settings(method))
        missing = [(pair, [m for m in methods if not _fresh(self.path(m, pair), pair)]) for pair in pairs]
        missing = [(pair, wanted) for pair, wanted in missing if wanted]
        made = 0
        for pair, wanted in tqdm(missing, desc="matching", unit="pair", disable=None, delay=PROGRESS_DELAY):
            features0, features1 = (self.features(pair.group, image, device) for image in (pair.image0, pair.image1))
            for method in wanted:
                start = time.perf_counter()
                indices, scores = method.match(features0, features1)  # on the CPU again, so a GPU is done
                seconds = time.perf_counter() - start
                prediction = Prediction(
                    features0.keypoints[indices[:, 0]],
                    features1.keypoints[indices[:, 1]],
                    scores,
                    features0.image_size,
                    features1.image_size,
                    (len(features0), len(features1)),
                    seconds,
                )
                save_prediction(self.path(method, pair), prediction)
                made += 1
        return made

    def features(self, group: str, image: Path, device: str = "cpu") -> Features:
        """The features of an image, extracted once."""
        target = self._features_folder / group / f"{image.name}.npz"
        if _newer(target, [image]):
            return load_features(target)
        if self._extractor is None:
            how = self.extraction
            self._extractor = make_extractor(how.features, how.extractor_weights, device)
            _claim(self._features_folder, self.extraction_settings)
        features = self._extractor.extract(
            image, self.extraction.max_keypoints, self.extraction.resize, tile=self.extraction.tile
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        save_features(target, features)
        return features


def save_prediction(path: Path, prediction: Prediction) -> None:
    """Write one prediction; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        np.savez(
            temporary,
            points0=prediction.points0,
            points1=prediction.points1,
            scores=prediction.scores,
            image_size0=np.array(prediction.image_size0),
            image_size1=np.array(prediction.image_size1),
            keypoints=np.array(prediction.keypoints),
            seconds=np.array(prediction.seconds),
        )


def load_prediction(path: Path) -> Prediction:
    """Read what `save_prediction` wrote."""
    if not path.is_file():
        raise LinGlueError(f"{path}: no such prediction, it must be made before it can be scored")
    try:
        with np.load(path, allow_pickle=False) as file:
            points0, points1 = (file[name].astype(np.float32).reshape(-1, 2) for name in ("points0", "points1"))
            if len(points0) != len(points1):
                raise ValueError("different numbers of points")
            keypoints = file["keypoints"].tolist()
            return Prediction(
                points0,
                points1,
                file["scores"].astype(np.float32).reshape(len(points0)),
                ImageSize(*file["image_size0"].tolist()),
                ImageSize(*file["image_size1"].tolist()),
                (int(keypoints[0]), int(keypoints[1])),
                float(file["seconds"]),
            )
    except Exception as error:  # zip and numpy raise many unrelated types on damaged files
        raise LinGlueError(f"{path}: damaged prediction; delete the file and it is made again") from error


def _claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings into the folder they name, or refuse a folder whose record says something else."""
    record = folder / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    if record.is_file():
        if record.read_text(encoding="utf-8") != text:
            raise LinGlueError(
                f"{record}: not the settings that the folder is named after; delete the folder "
                "or to choose another with -o"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(record) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _newer(path: Path, sources: Iterable[Path]) -> bool:
    """Whether the file exists and is not older than any of its sources."""
    if not path.is_file():
        return False
    made = path.stat().st_mtime
    return all(not source.is_file() or source.stat().st_mtime <= made for source in sources)


def _fresh(path: Path, pair: Pair) -> bool:
    return _newer(path, (pair.image0, pair.image1))
