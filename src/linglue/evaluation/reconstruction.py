"""3D reconstruction as the ETH local feature benchmark measures it: models of one scene by different matchers.

All methods get the very same features and pairs and go through `pipeline.reconstruct`, verification, mapper and
refinement included; only COLMAP's own pipeline does everything by itself. Known intrinsics are given to all.

    WORK/SCENE/HASH/features.db, intrinsics.txt, matches-METHOD.db, models-HASH/METHOD/…

HASH stands for what decides the content beside the photographs, so other settings lead to other folders. What is there
is not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linglue.errors import LinGlueError
from linglue.evaluation.colmap_sift import ColmapConfig, reconstruct_by_colmap
from linglue.evaluation.known_poses import KnownScene, load_known_scene
from linglue.evaluation.recipes import MethodRecipe
from linglue.evaluation.report import Table
from linglue.fingerprint import code_sha256, settings_hash
from linglue.io.atomic import atomic_path
from linglue.io.pair_list import read_pairs
from linglue.pipeline.cameras import CameraConfig
from linglue.pipeline.extract import ExtractConfig, extract_photos
from linglue.pipeline.mapping import MappingConfig
from linglue.pipeline.model import ModelStatistics, aligned_errors, read_model
from linglue.pipeline.reconstruct import ReconstructConfig, reconstruct
from linglue.pipeline.summary import Summary
from linglue.pipeline.survey import check_images, survey
from linglue.pipeline.workspace import Workspace

COLMAP = "colmap"  # the name of COLMAP's own pipeline among the methods
BASE = "linglue"  # the method whose time others are compared with
_FEATURE_CODE = ("features", "io/images.py", "types.py")
_MODEL_CODE = ("evaluation/colmap_sift.py", "io/colmap.py", "io/colmap_database.py", "pipeline/mapping.py")


@dataclass(frozen=True)
class Measurement:
    """How scenes are reconstructed, the same for all methods."""

    recipes: Sequence[MethodRecipe]
    extract: ExtractConfig
    mapping: MappingConfig
    workers: int
    colmap: ColmapConfig | None = None  # COLMAP's own pipeline as a further method


@dataclass(frozen=True)
class ModelScore:
    """How good the model of one method is; without one, why there is none."""

    scene: str
    method: str
    model: ModelStatistics | None
    made: bool  # in this run, at least in part
    seconds: float  # of matching alone, per pair: median; COLMAP's is a mean
    position_errors: Mapping[str, float]  # by image, in the unit of the truth; empty without truth
    rotation_errors: Mapping[str, float]  # degrees
    reason: str | None = None


@dataclass(frozen=True)
class _SharedWorkspace(Workspace):
    """The folder of one method's model; features and matches lie above it, where other models find them too."""

    above: Path

    @property
    def features_file(self) -> Path:
        return Workspace(self.above).features_file

    @property
    def matches_file(self) -> Path:
        return self.above / f"matches-{self.folder.name}.db"


def load_scene(folder: Path) -> KnownScene:
    """A scene with images/ and gt/ (see `evaluation.pose`), or any folder of photographs, of which nothing is known."""
    if (folder / "gt").is_dir():
        return load_known_scene(folder)
    images = folder / "images" if (folder / "images").is_dir() else folder
    check_images(images)
    return KnownScene(folder.resolve().name, images, {})


def measure(scene: KnownScene, work: Path, how: Measurement) -> list[ModelScore]:
    """The scores of all methods on a scene; models and all before them are made where the work folder lacks them."""
    features = settings_hash({**how.extract.settings(), "code": code_sha256(*_FEATURE_CODE)})
    above = work / scene.name / features
    models = above / f"models-{settings_hash({'code': code_sha256(*_MODEL_CODE), **asdict(how.mapping)})}"
    scores = []
    with Workspace(above).locked():
        config = CameraConfig(intrinsics=_write_intrinsics(above / "intrinsics.txt", scene))
        for recipe in how.recipes:
            place = _SharedWorkspace(models / recipe.name, above)
            scores.append(_score(scene, place, recipe.name, lambda: _reconstruct(scene, place, recipe, config, how)))
        if how.colmap is not None:
            place = _SharedWorkspace(models / COLMAP, above)
            scores.append(_score(scene, place, COLMAP, lambda: _by_colmap(scene, place, how)))
    return scores
