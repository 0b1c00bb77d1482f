"""A work folder as `linglue reconstruct` leaves it, of rendered images, with the true poses: made in a moment."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linglue.evaluation.known_poses import KnownView, triangulate, write_known_database
from linglue.features import make_extractor
from linglue.geometry.colmap import colmap_from_camera
from linglue.geometry.pose import Pose, rotation_error
from linglue.matcher import MatcherConfig
from linglue.sfm.sparse_model import write_model
from linglue.sfm.workspace import Workspace
from rendered import View

KEYPOINTS = 300


def pinhole(view: View) -> Any:
    """The true camera as COLMAP has it; skips the test where there is no pycolmap."""
    pytest.importorskip("pycolmap")
    return colmap_from_camera(view.camera)


def intrinsics(view: View) -> str:
    """MODEL width height params…, as in lists of queries."""
    camera = pinhole(view)
    return " ".join(map(str, [camera.model.name, camera.width, camera.height, *camera.params]))


def truth(view: View) -> Pose:
    return view.truth.cam_from_world


def write_map(folder: Path, views: tuple[View, ...]) -> None:
    """Features and a model with the true poses."""
    extractor, match = make_extractor("sift"), MatcherConfig("ratio").build().match
    work = Workspace(folder)
    with work.features() as store:
        for view in views:
            store.put(view.name, "rendered", extractor.extract(view.image, KEYPOINTS))
        features = {view.name: store.get(view.name) for view in views}
    found = {pair: match(*(features[name] for name in pair)).indices for pair in combinations(sorted(features), 2)}
    known = {view.name: KnownView(pinhole(view), truth(view)) for view in views}
    write_known_database(work.database, known, features.__getitem__, list(found), lambda *pair: found[pair])
    write_model(triangulate(work.database, known), work.model)


def errors(found: Pose, view: View) -> tuple[float, float]:
    """Metres and degrees from the truth."""
    true = truth(view)
    return float(np.linalg.norm(found.centre - true.centre)), rotation_error(found.rotation, true.rotation)
