"""Precision of the identity start against kornia's AdaLAM on the same SIFT keypoints of graf 1→3.

python benchmarks/graf.py [--keypoints 2048] [--json]

The data lies in $LINGLUE_DATA, default ../shared/data. A match is correct within 3 px of the homography.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import kornia.feature as KF
import numpy as np
import torch

from linglue.features import make_extractor
from linglue.matching.baselines import mutual_matches
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways
from linglue.network.batch import matchable
from linglue.network.config import PRESETS, LinGlueConfig
from linglue.training.identity import identity_network
from linglue.types import Features

THRESHOLD = 3.0  # pixels


def errors(features0: Features, features1: Features, pairs: torch.Tensor, homography: np.ndarray) -> np.ndarray:
    """(K,) pixels in image 1 between where a match is and where it should be."""
    index = pairs.numpy()
    points0 = features0.keypoints[index[:, 0]].astype(np.float64)
    mapped = np.concatenate([points0, np.ones((len(points0), 1))], axis=1) @ homography.T
    return np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - features1.keypoints[index[:, 1]], axis=1)


def adalam(features0: Features, features1: Features) -> torch.Tensor:
    """Matches (K, 2) of kornia's AdaLAM, with its own defaults."""

    def frames(features: Features) -> torch.Tensor:
        assert features.scales is not None and features.oris is not None
        return KF.laf_from_center_scale_ori(
            torch.from_numpy(features.keypoints)[None],
            torch.from_numpy(features.scales)[None, :, None, None],
            -torch.from_numpy(features.oris).rad2deg()[None, :, None],  # kornia turns the other way
        )

    _, pairs = KF.match_adalam(
        torch.from_numpy(features0.descriptors),
        torch.from_numpy(features1.descriptors),
        frames(features0),
        frames(features1),
        hw1=features0.image_size[::-1],
        hw2=features1.image_size[::-1],
    )
    return pairs


@torch.inference_mode()
def linglue(features0: Features, features1: Features, preset: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Matches (K, 2) of the identity start without and with completion."""
    descriptors = torch.from_numpy(np.concatenate([features0.descriptors, features1.descriptors]))
    network = identity_network(LinGlueConfig.preset(preset, features0.dim), descriptors).eval()
    entry0, entry1 = features0.tensors(), features1.tensors()
    encoded = network.encode(entry0, entry1)
    (pair,) = matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)
    accepted, _ = match_descriptors(*pair, MatchingConfig(completion=None))
    return accepted, match_descriptors(*pair, MatchingConfig())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keypoints", type=int, default=2048)
    parser.add_argument("--preset", choices=[n for n, p in PRESETS.items() if not p.get("sinkhorn")], default="geo")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    default = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("LINGLUE_DATA", default)) / "oxford" / "v_graf"
    missing = [name for name in ("1.png", "3.png", "H_1_3") if not (folder / name).is_file()]
    if missing:
        sys.exit(f"{folder}: no {', '.join(missing)} there; set LINGLUE_DATA to the folder that holds oxford/v_graf")
    torch.manual_seed(0)  # AdaLAM samples from the global generator
    extractor = make_extractor("sift")
    features0, features1 = (extractor.extract(folder / name, arguments.keypoints) for name in ("1.png", "3.png"))
    homography = np.loadtxt(folder / "H_1_3")
    nearest = nearest_both_ways(torch.from_numpy(features0.descriptors), torch.from_numpy(features1.descriptors))
    filtered, completed = linglue(features0, features1, arguments.preset)
    results = {
        "mutual nearest neighbours": mutual_matches(*nearest)[0],
        "AdaLAM (kornia)": adalam(features0, features1),
        "LinGlue, identity start, no completion": filtered,
        "LinGlue, identity start": completed,
    }
    rows = []
    for name, pairs in results.items():
        correct = int((errors(features0, features1, pairs, homography) <= THRESHOLD).sum())
        rows.append({"method": name, "matches": len(pairs), "correct": correct, "precision": correct / len(pairs)})
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"graf 1→3, {len(features0)} and {len(features1)} SIFT keypoints, correct within {THRESHOLD:g} px")
    for row in rows:
        print(f"{row['method']:<40}{row['matches']:>5} matches {row['correct']:>5} correct {row['precision']:>7.1%}")


if __name__ == "__main__":
    main()
