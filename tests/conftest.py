"""What many tests start from: a matcher, and an image with a warped copy of itself whose truth is known."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

import linglue


@dataclass(frozen=True)
class WarpedPair:
    """image1 shows image0 through the homography image1_from_image0."""

    image0: np.ndarray  # (H, W, 3) uint8
    image1: np.ndarray
    image1_from_image0: np.ndarray  # (3, 3)

    def errors(self, points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
        """(K,) pixels in image 1 between the matched and the true place."""
        true = cv2.perspectiveTransform(points0[:, None].astype(np.float64), self.image1_from_image0)[:, 0]
        return np.linalg.norm(true - points1, axis=1)


@pytest.fixture(scope="session")
def matcher() -> linglue.Matcher:
    return linglue.Matcher.from_pretrained(device="cpu")


@pytest.fixture(scope="session")
def pair() -> WarpedPair:
    """600x400 against 560x420, turned by 12 degrees, shrunk to 90 % and tilted."""
    image = np.ascontiguousarray(data.coffee())
    turned = np.vstack([cv2.getRotationMatrix2D((300, 200), 12, 0.9), [0, 0, 1]])
    tilt = np.array([[1, 0.05, -10], [0, 1, 8], [1e-4, 5e-5, 1]])
    image1_from_image0 = tilt @ turned
    return WarpedPair(image, cv2.warpPerspective(image, image1_from_image0, (560, 420)), image1_from_image0)


@pytest.fixture(scope="session")
def images(pair, tmp_path_factory) -> tuple[Path, Path]:
    """The pair as two files; nothing else is in their folder, and tests leave it so."""
    folder = tmp_path_factory.mktemp("images")
    paths = folder / "a.png", folder / "b.png"
    for path, image in zip(paths, (pair.image0, pair.image1), strict=True):
        cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return paths


@pytest.fixture(scope="session")
def reconstruction(tmp_path_factory) -> Path:
    """A work folder as `linglue reconstruct` leaves it: four views of the rendered room, and a black image."""
    pytest.importorskip("pycolmap")
    from linglue.sfm.cameras import CameraConfig
    from linglue.sfm.extract import ExtractConfig
    from linglue.sfm.map import MappingConfig
    from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
    from linglue.sfm.workspace import Workspace
    from rendered import FOCAL, SIZE, render, write_images

    folder = tmp_path_factory.mktemp("reconstruction")
    write_images(folder / "images", render(4))
    cv2.imwrite(str(folder / "images" / "night.png"), np.zeros((SIZE.height, SIZE.width, 3), np.uint8))
    config = ReconstructConfig(
        extract=ExtractConfig(max_keypoints=500),
        cameras=CameraConfig(intrinsics=f"{FOCAL},{FOCAL},{SIZE.width / 2},{SIZE.height / 2}"),
        mapping=MappingConfig(threads=1),
        pictures=False,
    )
    reconstruct(folder / "images", Workspace(folder / "work"), config)
    return folder / "work"


@pytest.fixture(scope="session")
def ray_here() -> None:
    """Tests that need Ray are skipped where it is not installed, or cannot start: no shared memory, no ports."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install linglue[ray]")
    start = "import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False); ray.shutdown()"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        subprocess.run([sys.executable, "-c", start], check=True, capture_output=True, timeout=180, env=environment)
    except subprocess.SubprocessError as error:
        pytest.skip(f"Ray does not start on this machine: {error}")
