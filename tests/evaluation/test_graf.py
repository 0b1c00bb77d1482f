"""Adapters are right: graf 1→3 with 1024 keypoints gives the shares of correct matches that the field knows.

SuperGlue about 79 %, ALIKED + LightGlue about 75 %, plain SIFT with Lowe's one-way ratio test about 61 %. Our `ratio`
is RootSIFT and mutual, which is why it has 70 %.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linglue.evaluation.methods import parse_method, prepare
from linglue.evaluation.peers import NoWeights
from linglue.evaluation.store import Predictions, predict
from linglue.evaluation.tasks.homography import HomographyPair, load_pairs
from linglue.geometry.homography import reprojection_errors
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig

DATA = Path(os.environ.get("LINGLUE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "oxford"
EXTRACT = ExtractConfig(features="sift", max_keypoints=1024, resize=None)


@pytest.fixture(scope="module")
def graf() -> HomographyPair:
    if not (DATA / "v_graf").is_dir():
        pytest.skip(f"{DATA}: no such folder; LINGLUE_DATA names the one with oxford/")
    return next(truth for truth in load_pairs(DATA)[0] if truth.pair.name == "v_graf 1-3")


def correct(truth: HomographyPair, points0: np.ndarray, points1: np.ndarray) -> float:
    return 100 * float((reprojection_errors(truth.homography_1_from_0, points0, points1) <= 3).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "percent"),
    [("superpoint:superglue", 79), ("aliked:lightglue", 75), ("sift:ratio", 70), ("sift:ratio-oneway", 67)],
)
def test_share_of_correct_matches(graf: HomographyPair, tmp_path: Path, method: str, percent: float) -> None:
    try:
        prepared = prepare({method: parse_method(method, EXTRACT)}, EXTRACT)
    except NoWeights as error:
        pytest.skip(str(error))
    except Exception as error:
        if "no method to measure" not in str(error):
            raise
        pytest.skip(str(error))
    found = predict(tmp_path, [graf.pair], prepared)[1][method][0]
    assert correct(graf, found.points0, found.points1) == pytest.approx(percent, abs=1.5)


def test_plain_sift_with_lowes_test(graf: HomographyPair, tmp_path: Path) -> None:
    predict(tmp_path, [graf.pair], prepare(["mnn"], EXTRACT))
    with Predictions(tmp_path, graf.pair.group, EXTRACT).workspace.features() as store:
        sides = [store.get(image.name) for image in (graf.pair.image0, graf.pair.image1)]
    plain = [side.descriptors**2 for side in sides]  # RootSIFT is the square root of SIFT
    zero, one = (
        replace(side, descriptors=x / np.linalg.norm(x, axis=1, keepdims=True))
        for side, x in zip(sides, plain, strict=True)
    )
    found = MatcherConfig("ratio-oneway", "sift").build().match(zero, one)
    assert correct(graf, found.points0, found.points1) == pytest.approx(61, abs=2)
