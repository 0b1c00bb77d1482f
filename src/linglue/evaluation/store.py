"""Features and matches of evaluations: made once by the stages of the pipeline, scored from the files and nothing else.

    WORK/SCENE/HASH/features.db, matches-METHOD.db

HASH stands for all that decides the features beside the images. Every entry has a fingerprint of what it was made from:
content of the images, front-end and its weights, settings of the matcher. An interrupted run resumes where it stopped.
All tasks that measure a scene in one work folder share its features and matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from linglue.core.engine import Engine
from linglue.core.fingerprint import code_sha256, file_sha256, settings_hash
from linglue.errors import LinGlueError
from linglue.evaluation.detector_free import ImageMatcher, predict_images
from linglue.evaluation.methods import Prepared
from linglue.io.pair_list import make_pair
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig, Extracted, extract_images
from linglue.sfm.match import build_matcher, match_pairs
from linglue.sfm.scan import ImageFile
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.sfm.workspace import Workspace
from linglue.types import Features, FloatArray, ImageSize

PROGRESS_DELAY = 2.0  # seconds after which a progress bar appears
FEATURES_KEPT = 16  # images whose features stay in memory while pairs are scored

_FEATURE_CODE = ("features", "geometry/pixels.py", "io/images.py", "types.py")


@dataclass(frozen=True)
class Pair:
    """Two images of one group (sequence or scene).

    Args:
        group: name of the group.
        image0: in the folder of the group.
        image1: in the same folder.
    """

    group: str
    image0: Path
    image1: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.group} {self.image0.stem}-{self.image1.stem}"


@dataclass(frozen=True, eq=False)
class Prediction:
    """What one method found in one pair."""

    points0: FloatArray  # (K, 2) pixels of the original image 0
    points1: FloatArray  # (K, 2) pixels of the original image 1
    scores: FloatArray  # (K,)
    image_size0: ImageSize
    image_size1: ImageSize
    keypoints: tuple[int, int]  # numbers in the two images
    seconds: float  # matching alone, features given


def scene_folder(work: Path, scene: str, extract: ExtractConfig) -> Path:
    """Where the features of a scene and the matches of all methods lie, for every evaluation in a work folder.

    Args:
        work: work folder.
        scene: its name.
        extract: how features are taken.
    """
    return work / scene / settings_hash({**extract.settings(), "code": code_sha256(*_FEATURE_CODE)})


def matches_file(folder: Path, method: str) -> Path:
    """The file of a method's matches in a folder of `scene_folder`.

    Args:
        folder: of `scene_folder`.
        method: its name.
    """
    plain = re.sub(r"[^\w.-]", "_", method)  # package:Name is a method, too
    return folder / f"matches-{plain}.db"


def extract_named(
    folder: Path, names: Iterable[str], extract: ExtractConfig, store: FeatureStore, engine: Engine | None = None
) -> Extracted:
    """Features of the named images below a folder into the store.

    Args:
        folder: of the images.
        names: relative to it.
        extract: how features are taken.
        store: where they go.
        engine: where it is done; None: in this process.

    Returns:
        What the stage did; images that are missing or cannot be used are among its problems.
    """
    images, problems = [], []
    for name in dict.fromkeys(names):
        path = folder / name
        if not path.is_file():
            problems.append(f"{name}: no such image in {folder}, left out")
            continue
        sha256 = store.known_sha256(path) or file_sha256(path)
        store.remember_sha256(path, sha256)
        images.append(ImageFile(name, path, sha256))
    done = extract_images(images, extract, store, engine)
    return Extracted(done.images, [*problems, *done.problems], done.made, done.kept, done.keypoints)


def predict(
    work: Path, pairs: Sequence[Pair], methods: Prepared, engine: Engine | None = None
) -> tuple[int, dict[str, list[Prediction]]]:
    """Predictions of all methods, whatever their front-ends, for the pairs of one group.

    Args:
        work: work folder.
        pairs: of one group.
        methods: what `evaluation.methods.prepare` made.
        engine: where it is done; None: in this process.

    Returns:
        How many predictions were made, and all predictions by method, in the order of the pairs.
    """
    made = 0
    found: dict[str, list[Prediction]] = {}
    for extract, matchers in methods.by_front_end():
        for name, config in list(matchers.items()):
            matcher = build_matcher(config)
            if isinstance(matcher, ImageMatcher):
                new, found[name] = predict_images(work, pairs, matcher, extract.resize)
                made += new
                del matchers[name]
        if matchers:
            predictions = Predictions(work, pairs[0].group, extract)
            made += predictions.make(pairs, matchers, engine)
            found |= {name: predictions.load(pairs, name) for name in matchers}
    return made, {name: found[name] for name in methods.ready}


class Predictions:
    """What all methods found in the pairs of one group; pairs that were not made are an error.

    Args:
        work: work folder.
        group: name of the sequence or scene.
        extract: how features are taken.
    """

    def __init__(self, work: Path, group: str, extract: ExtractConfig) -> None:
        self.workspace = Workspace(scene_folder(work, group, extract))
        self.extract = extract

    def make(self, pairs: Sequence[Pair], methods: Mapping[str, MatcherConfig], engine: Engine | None = None) -> int:
        """Make what is missing, one method after another; returns how many predictions that were.

        Args:
            pairs: of this group.
            methods: matchers by name.
            engine: where it is done; None: in this process.
        """
        folder = pairs[0].image0.parent
        names = [image.name for pair in pairs for image in (pair.image0, pair.image1)]
        wanted = sorted({make_pair(pair.image0.name, pair.image1.name) for pair in pairs})
        made = 0
        with self.workspace.locked(), self.workspace.features() as features:
            done = extract_named(folder, names, self.extract, features, engine)
            useless = [problem for problem in done.problems if ": left out (" in problem]
            if useless:  # images without a keypoint have no matches, but these cannot even be read
                raise LinGlueError(f"{folder}/{useless[0].replace(': left out (', ': ').removesuffix(')')}")
            for method, config in methods.items():
                with MatchStore(matches_file(self.workspace.folder, method)) as matches:
                    made += match_pairs(wanted, config, features, matches, engine).made
        return made

    def load(self, pairs: Sequence[Pair], method: str) -> list[Prediction]:
        """The predictions of one method for all pairs, in their order.

        Args:
            pairs: of this group.
            method: its name.
        """
        with self.workspace.features() as features, MatchStore(matches_file(self.workspace.folder, method)) as matches:
            seconds, get = matches.seconds(), lru_cache(FEATURES_KEPT)(features.get)
            return [_prediction(pair, get, matches, seconds) for pair in pairs]


def _prediction(
    pair: Pair, get: Callable[[str], Features], matches: MatchStore, seconds: Mapping[tuple[str, str], float]
) -> Prediction:
    name0, name1 = pair.image0.name, pair.image1.name
    features0, features1 = get(name0), get(name1)
    indices, scores = matches.get(name0, name1)
    return Prediction(
        features0.keypoints[indices[:, 0]],
        features1.keypoints[indices[:, 1]],
        scores,
        features0.image_size,
        features1.image_size,
        (len(features0), len(features1)),
        seconds[make_pair(name0, name1)],
    )
