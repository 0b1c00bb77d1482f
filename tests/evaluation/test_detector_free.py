"""Matchers that take images: predictions are kept, and points are in original pixels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from evaluation.tasks.test_homography import write_data_set
from linglue import evaluation
from linglue.errors import LinGlueError
from linglue.evaluation.peers import NoWeights
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig
from linglue.types import Features, Matches

CALLS: list[tuple[str, str]] = []


@dataclass
class Corners:
    """Says that five points lie at the same places in both images."""

    config: MatcherConfig
    settings: Any = None

    def __post_init__(self) -> None:
        self.settings = {"corners": 1}

    def match(self, features0: Features, features1: Features) -> Matches:
        raise LinGlueError("matches images")

    def match_images(self, image0: Path, image1: Path, resize: int | None) -> tuple[np.ndarray, ...]:
        CALLS.append((image0.name, image1.name))
        points = np.array([(0, 0), (50, 0), (0, 50), (50, 50), (20, 30)], np.float32)
        return points, points, np.ones(5, np.float32)


def test_images_are_matched_once_beside_methods_with_keypoints(tmp_path: Path) -> None:
    data = write_data_set(tmp_path / "data")
    arguments = (data, ["mnn", f"{__name__}:Corners"], tmp_path / "work", ExtractConfig(max_keypoints=100))
    result = evaluation.homography(*arguments, estimators=["opencv-ransac"])
    assert list(result.summary["overall"]) == ["mnn", f"{__name__}:Corners"]
    values = result.summary["illumination"][f"{__name__}:Corners"]
    assert values["matches"] == 5 and values["mma"]["1"] == 1  # nothing moves there
    assert len(CALLS) == 4
    assert evaluation.homography(*arguments, estimators=["opencv-ransac"]).made == 0 and len(CALLS) == 4


def test_loftr_without_weights_and_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    with pytest.raises(NoWeights, match=r"loftr_outdoor\.ckpt is not in"):
        MatcherConfig("loftr").build()


@pytest.mark.slow
def test_loftr_gives_original_pixels(tmp_path: Path) -> None:
    """Random weights: where its matches are says nothing, in which pixels they are does."""
    feature = pytest.importorskip("kornia.feature")
    from linglue.evaluation.peers.loftr import LoFTR

    torch.manual_seed(0)
    weights = tmp_path / "loftr.ckpt"
    torch.save({"state_dict": feature.LoFTR(pretrained=None).state_dict()}, weights)
    loftr = LoFTR(MatcherConfig("loftr", weights=weights))
    rng = np.random.default_rng(0)
    image = cv2.resize(rng.integers(0, 255, (20, 30, 3)).astype(np.uint8), (240, 160))
    cv2.imwrite(str(tmp_path / "a.png"), image)
    points0, points1, scores = loftr.match_images(tmp_path / "a.png", tmp_path / "a.png", 120)
    assert points0.shape == points1.shape == (len(scores), 2)
    if len(points0):  # coarse cells are 8 px of 120, that is 16 of 240; their corners −½
        np.testing.assert_allclose((points0 + 0.5) % 16, 0, atol=1e-4)
    with pytest.raises(LinGlueError, match="matches images, expected only in eval homography and eval pose"):
        loftr.match(None, None)
    torch.save({}, weights)
    with pytest.raises(LinGlueError, match="no weights of LoFTR"):
        MatcherConfig("loftr", weights=weights).build()
