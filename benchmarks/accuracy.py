"""The tables of docs/accuracy.md: pose and homography accuracy of LinGlue and its peers on the same keypoints, one run.

python benchmarks/accuracy.py SCENE [SCENE ...] --planes DATA [-o WORK] [--methods METHOD ...] [--scores NAME ...]
    [--docs FILE]

SCENE is a folder for `linglue eval pose` (benchmarks/pose_scenes.py makes some of image collections), DATA one in the
layout of HPatches. Methods whose weights are missing are named and left out; what is in WORK is not measured again.
NAME is a front-end whose network has a learned consensus: how honest its scores are.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from linglue import evaluation
from linglue.evaluation.tasks.scores import UNRELATED, measure, tables
from linglue.sfm.extract import ExtractConfig

METHODS = (
    "linpoint:mnn",
    "linpoint:linglue",
    "sift:mnn",
    "sift:ratio",
    "sift:adalam",
    "sift:linglue",
    "aliked:mnn",
    "aliked:linglue",
    "aliked:lightglue",
    "superpoint:mnn",
    "superpoint:linglue",
    "superpoint:superglue",
)
HEAD = """# Accuracy

Written by `python benchmarks/accuracy.py`. Scenes are held-out image collections with poses from full reconstruction
(`benchmarks/pose_scenes.py`) and entry-P10; planes are EVD, extreme views of flat scenes. None was learned from, but
models and the default `min_score` are chosen by them: expect a little less elsewhere.

"""

SCORES = f"""

## Scores

A score is meant to be the probability that the match is right. How often it was, on the scenes above with 2048
keypoints, all matches counted; right is at most 3 px from the epipolar lines. The calibration error is the mean
difference between score and share. Unrelated are {UNRELATED} pairs of images of different scenes.

"""


def main() -> None:
    """Measure, print, and write the document if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="+", type=Path)
    parser.add_argument("--planes", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--scores", nargs="*", default=["linpoint"])
    parser.add_argument("-o", "--work", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    extract = ExtractConfig(max_keypoints=2048, resize=1024)
    results = [evaluation.pose(options.scenes, options.methods, options.work / "pose", extract)]
    if options.planes is not None:
        results.append(evaluation.homography([options.planes], options.methods, options.work / "planes", extract))
    text = "\n\n".join(result.text(markdown=True) for result in results)
    if options.scores:
        found = {name: measure(options.scenes, replace(extract, features=name)) for name in options.scores}
        text += SCORES + "\n\n".join(table.markdown() for table in tables(found))
    print(text)
    if options.docs is not None:
        options.docs.write_text(HEAD + text + "\n")


if __name__ == "__main__":
    main()
