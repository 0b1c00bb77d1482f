"""Matches between images that have nothing in common: `python benchmarks/unrelated.py IMAGES`. Fewer is better."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tqdm import tqdm

from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.matcher import MatcherConfig
from linglue.training.images.image_set import ImageSet

METHODS = ("mnn", "ratio", "adalam", "linglue")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="folder of images, no two of them of the same thing")
    parser.add_argument("--features", default="sift")
    parser.add_argument("--extractor-weights", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--max-keypoints", type=int, default=2048)
    parser.add_argument("--resize", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    _, held_out = ImageSet.in_folder(options.images).split(0.1)  # training has not seen these
    if len(held_out) < 2 * options.pairs:
        raise LinGlueError(f"{options.images}: {len(held_out)} held-out images, expected {2 * options.pairs}")
    chosen = np.random.default_rng(options.seed).permutation(len(held_out))[: 2 * options.pairs]
    extractor = make_extractor(options.features, options.extractor_weights)
    features = [
        extractor.extract(held_out[int(index)], options.max_keypoints, options.resize)
        for index in tqdm(chosen, unit="image", disable=None)
    ]
    methods = {name: MatcherConfig(name, options.features).build() for name in METHODS}
    counts = {
        name: [len(matcher.match(features[i], features[i + 1])) for i in range(0, len(features), 2)]
        for name, matcher in methods.items()
    }
    print("| method | median matches | mean | most |\n|---|---:|---:|---:|")
    for name, found in counts.items():
        print(f"| {name} | {np.median(found):g} | {np.mean(found):.1f} | {max(found)} |")
    print(
        f"\n{options.pairs} pairs of unrelated held-out images, {options.features}, at most "
        f"{options.max_keypoints} keypoints, longer side at most {options.resize} px, seed {options.seed}."
    )


if __name__ == "__main__":
    main()
