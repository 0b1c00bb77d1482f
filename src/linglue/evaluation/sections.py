"""What the suite is made of: every section calls one task with the data, methods and settings of its table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from linglue.core.engine import Engine
from linglue.core.fingerprint import settings_hash
from linglue.core.pool import Pool
from linglue.dense.dense import DenseConfig
from linglue.errors import LinGlueError
from linglue.evaluation.methods import find_front_end_file
from linglue.evaluation.result import Result
from linglue.evaluation.tasks import (
    ablation,
    front_ends,
    homography,
    localization,
    pose,
    reconstruction,
    scalability,
    scores,
)
from linglue.evaluation.timing import SIZES, Limits
from linglue.features import DEFAULT_FEATURES
from linglue.sfm.extract import ExtractConfig

SCENES = "LINGLUE_SCENES"  # environment variable: a folder of scenes made by benchmarks/pose_scenes.py
METHODS = (
    *("linpoint:mnn", "linpoint:linglue-paper", "linpoint:linglue-fast", "linpoint:linglue-full", "linpoint:linglue"),
    *("sift:mnn", "sift:ratio", "sift:ratio-oneway", "sift:adalam", "sift:colmap-sift", "sift:linglue"),
    *("superpoint:mnn", "superpoint:superglue", "superpoint:superglue-10", "superpoint:linglue"),
    *("aliked:mnn", "aliked:lightglue", "aliked:linglue-paper", "aliked:linglue"),
    *("disk:lightglue", "xfeat:lightglue", "loftr"),
)
SCENE_METHODS = (  # of many pairs: without the slowest
    *("linpoint:mnn", "linpoint:linglue-paper", "linpoint:linglue-fast", "linpoint:linglue-full", "linpoint:linglue"),
    *("sift:mnn", "sift:ratio", "sift:adalam", "sift:linglue"),
    *("superpoint:mnn", "superpoint:superglue-10", "superpoint:linglue"),
    *("aliked:mnn", "aliked:lightglue", "aliked:linglue-paper", "aliked:linglue"),
)
MODEL_METHODS = (  # attention that grows with the square gets fewer keypoints: /N
    *("linpoint:mnn", "linpoint:linglue"),
    *("sift:mnn", "sift:ratio", "sift:adalam", "sift:linglue"),
    *("superpoint:superglue-10/2048", "superpoint:linglue"),
    *("aliked:lightglue/4096", "aliked:linglue"),
)
QUICK_METHODS = (
    *("linpoint:mnn", "linpoint:linglue-paper", "linpoint:linglue"),
    *("sift:mnn", "sift:ratio", "sift:adalam", "sift:linglue"),
    *("superpoint:superglue-10", "superpoint:linglue", "aliked:lightglue", "aliked:linglue", "loftr"),
)
QUICK_MODEL_METHODS = (
    *("linpoint:mnn", "linpoint:linglue", "sift:ratio", "sift:linglue"),
    *("superpoint:superglue-10", "superpoint:linglue", "aliked:lightglue", "aliked:linglue"),
)
QUICK_SEQUENCES = {
    "oxford": ("v_graf", "v_boat", "i_leuven", "i_trees"),
    "evd": ("v_adam", "v_cafe", "v_cat", "v_graf", "v_grand", "v_there"),
}
QUICK_SCENES = 4
QUICK_DENSE = 256  # longer side of the images that dense points are made of
QUICK_LEFT_OUT = ("colmap-sift", "ratio")  # of the subjects of scalability
TIMED = ("v_graf/1.png", "v_wall/1.png", "i_leuven/1.png", "v_boat/1.png")  # of oxford: front-ends are timed with them
ACCURACY = ("linpoint:mnn", "linpoint:linglue", "sift:mnn", "sift:linglue", "aliked:lightglue/4096")
ABLATED = (DEFAULT_FEATURES, "superpoint", "sift")


class NoData(LinGlueError):
    """The data of a section are not at hand."""


@dataclass(frozen=True)
class Suite:
    """What the whole run is made of.

    Args:
        data: folder with oxford/, evd/ and epfl/.
        work: where everything is kept.
        quick: a small part of everything, in minutes.
        engine: where images are extracted and pairs matched.
        scenes: folder of held-out scenes with known poses (images/, gt/, pairs.txt); None: LINGLUE_SCENES, or
            pose_scenes of the data.
        networks: folder of networks for the ablation besides those in the package.
        without: methods that are left out, e.g. because they take hours.
        workers: sections measured at a time, each in a process of its own; the cores are shared out among them.
    """

    data: Path
    work: Path
    quick: bool = False
    engine: Engine = field(default_factory=Pool)
    scenes: Path | None = None
    networks: Path | None = None
    without: tuple[str, ...] = ()
    workers: int = 1

    @property
    def results(self) -> Path:
        """The folder of the finished sections."""
        return self.work / ("results-quick" if self.quick else "results")

    def folder(self, name: str) -> Path:
        """A folder of the data.

        Args:
            name: below the data folder.

        Raises:
            NoData: it is not there.
        """
        path = self.data / name
        if not path.is_dir():
            raise NoData(f"{path}: no such folder")
        return path

    def planes(self, name: str) -> Path:
        """A planar data set, or links to a few of its sequences.

        Args:
            name: oxford or evd.
        """
        data = self.folder(name)
        if not self.quick:
            return data
        chosen = [(data / sequence).resolve() for sequence in QUICK_SEQUENCES[name] if (data / sequence).is_dir()]
        if not chosen:
            raise NoData(f"{data}: holds none of {', '.join(QUICK_SEQUENCES[name])}")
        few = self.work / "quick-data" / settings_hash({"data": str(data.resolve())}) / name
        few.mkdir(parents=True, exist_ok=True)
        for sequence in chosen:
            with suppress(FileExistsError):  # made by an earlier run, or by another section at the same time
                (few / sequence.name).symlink_to(sequence)
        return few

    def epfl(self) -> list[Path]:
        """The two small scenes of the ETH benchmark."""
        return [self.folder(f"epfl/{name}") for name in ("Herz-Jesus-P8", "fountain-P11")]

    def held_out(self) -> list[Path]:
        """Scenes that nothing was learned from."""
        folder = self.scenes or Path(os.environ.get(SCENES, self.data / "pose_scenes"))
        found = sorted(path for path in folder.glob("*") if (path / "gt").is_dir())
        if not found:
            raise NoData(f"{folder}: holds no scene with images/ and gt/; benchmarks/pose_scenes.py makes some")
        return sorted(found, key=_images)[:QUICK_SCENES] if self.quick else found

    def extract(self, features: str = "sift", keypoints: int = 2048, resize: int | None = 1024) -> ExtractConfig:
        """Features of a section; a quick run takes fewer, and the same for all sections, which then share them.

        Args:
            features: of methods that name none.
            keypoints: at most this many.
            resize: longer side; None: original.
        """
        count, side = (min(1024, keypoints), 800) if self.quick else (keypoints, resize)
        return ExtractConfig(features, find_front_end_file(features), max_keypoints=count, resize=side)

    def methods(self, full: Sequence[str], quick: Sequence[str]) -> list[str]:
        """The names for this kind of run.

        Args:
            full: of a full run.
            quick: of a quick one.
        """
        return [name for name in (quick if self.quick else full) if name not in self.without]


def _images(scene: Path) -> int:
    return len(list((scene / "gt").iterdir()))


Section = Callable[[Suite], Result]


def _homography(suite: Suite) -> Result:
    methods, work = suite.methods(METHODS, QUICK_METHODS), suite.work / "oxford"
    return _on_planes(suite, "oxford", methods, work)


def _on_planes(suite: Suite, data: str, methods: Sequence[str], work: Path) -> Result:
    extract, engine = suite.extract(), suite.engine
    return homography.evaluate(suite.planes(data), methods, work, extract, estimators=["poselib"], engine=engine)


def _pose(suite: Suite) -> Result:
    methods, gap = suite.methods(METHODS, QUICK_METHODS), 2 if suite.quick else pose.MAX_GAP
    extract, engine = suite.extract(), suite.engine
    return pose.evaluate(suite.epfl(), methods, suite.work / "epfl", extract, max_gap=gap, engine=engine)


def _scenes(suite: Suite) -> Result:
    methods = suite.methods(SCENE_METHODS, QUICK_METHODS[:-1])
    return pose.evaluate(suite.held_out(), methods, suite.work / "scenes", suite.extract(), engine=suite.engine)


def _planes(suite: Suite) -> Result:
    methods, work = suite.methods(SCENE_METHODS, QUICK_METHODS[:-1]), suite.work / "evd"
    return _on_planes(suite, "evd", methods, work)


def _scores(suite: Suite) -> Result:
    number, peers = 40 if suite.quick else scores.UNRELATED, suite.methods(scores.PEERS, scores.PEERS[-1:])
    return scores.evaluate(suite.held_out(), extract=suite.extract(), unrelated=number, peers=peers)


def _reconstruction(suite: Suite) -> Result:
    methods = [*suite.methods(MODEL_METHODS, QUICK_MODEL_METHODS), reconstruction.COLMAP]
    extract = suite.extract(keypoints=10000, resize=None)
    dense = DenseConfig(longer_side=QUICK_DENSE) if suite.quick else DenseConfig()
    work, engine = suite.work / "epfl", suite.engine
    return reconstruction.evaluate(suite.epfl(), methods, work, extract, engine=engine, dense=dense)


def _localization(suite: Suite) -> Result:
    methods = suite.methods(MODEL_METHODS, QUICK_MODEL_METHODS)
    extract = suite.extract(keypoints=4096, resize=1600)
    return localization.evaluate(suite.epfl(), methods, suite.work / "epfl", extract, engine=suite.engine)


def _front_ends(suite: Suite) -> Result:
    planes = [suite.planes(name) for name in ("oxford", "evd") if (suite.data / name).is_dir()]
    scenes = {"entry-P10": [suite.folder("epfl/entry-P10")]}
    with suppress(NoData):  # the others are enough
        scenes["held-out scenes"] = suite.held_out()
    images = [suite.folder("oxford") / name for name in TIMED]
    images, gap = (images[:1], 1) if suite.quick else (images, pose.MAX_GAP)
    return front_ends.evaluate(planes, scenes, suite.work, suite.extract(), images=images, max_gap=gap)


def _scalability(suite: Suite) -> Result:
    return scalability.evaluate(
        suite.work / "scalability",
        [s for s in scalability.SUBJECTS if not suite.quick or s.shown not in QUICK_LEFT_OUT],
        SIZES[:-1] if suite.quick else SIZES,
        repeats=1 if suite.quick else 3,
        limits=Limits(seconds=25) if suite.quick else Limits(),
        scenes=suite.epfl(),
        methods=suite.methods(ACCURACY, ACCURACY[:-1]),
        extract=suite.extract(),
        keypoints=(512, 1024) if suite.quick else scalability.KEYPOINTS,
    )


def _ablation(suite: Suite) -> Result:
    scenes = suite.epfl()[:1] if suite.quick else suite.epfl()
    kinds = [kind for kind in ABLATED if _at_hand(suite.extract(kind))]
    return ablation.evaluate(
        [suite.planes("oxford")],
        scenes,
        suite.work / "ablation",
        [suite.extract(kind) for kind in kinds],
        folder=suite.networks,
        keypoints=ablation.KEYPOINTS[:2] if suite.quick else ablation.KEYPOINTS,
        engine=suite.engine,
    )


def _at_hand(extract: ExtractConfig) -> bool:
    try:
        extract.extractor()
    except LinGlueError:
        return False
    return True


SECTIONS: dict[str, Section] = {
    "homography": _homography,
    "pose": _pose,
    "scenes": _scenes,
    "planes": _planes,
    "scores": _scores,
    "reconstruction": _reconstruction,
    "localization": _localization,
    "front-ends": _front_ends,
    "scalability": _scalability,
    "ablation": _ablation,
}
LANES = (  # sections of a lane use the same folders, one after another; lanes run at the same time, the longest first
    ("homography", "planes", "scenes", "front-ends"),
    ("pose", "reconstruction", "localization"),
    ("ablation",),
    ("scalability",),
    ("scores",),
)
