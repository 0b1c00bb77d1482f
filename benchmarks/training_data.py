"""What making training data costs: pairs per second and storage of synthetic pairs, seconds per label of a teacher.

    python benchmarks/training_data.py IMAGES [--features sift linpoint] [--pairs 24] [--scene DIR --weights DIR]

IMAGES is a folder of images that pairs are made of. With --scene, a folder of images of one place, and --weights, the
folder of the teacher's weights, labels of real pairs are timed, too. Prints what docs/training.md shows. Times are
seconds of CPU of one thread, so that a shared machine disturbs them less.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import cv2
import torch

from linglue.features import make_extractor
from linglue.training.cache.build import CacheConfig, build_cache
from linglue.training.config import SMALLEST_SIDE, DataConfig
from linglue.training.data import synthetic_sources
from linglue.training.images.image_set import ImageSet
from linglue.training.sources.labels import LabelConfig, LightGlueTeacher, label_scene

VIEWS = (2, 4)
KEYPOINTS = 1024
LONGER_SIDE = 1024


def synthetic_row(images: ImageSet, features: str, source: str, views: int, pairs: int) -> str:
    """A row of the table: a small cache made of one source, its time and its size."""
    extractor = make_extractor(features)
    data = DataConfig(views=views, longer_side=LONGER_SIDE)
    chosen = {source: (synthetic_sources(data)[source][0], 1.0)}
    with tempfile.TemporaryDirectory() as folder:
        config = CacheConfig(pairs=pairs, shard_size=pairs, keypoints=KEYPOINTS, unrelated=0.0)
        start = time.process_time()
        build_cache(folder, chosen, images, extractor, config, progress=False)
        seconds = time.process_time() - start
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return f"| {features} | {source} | {views} | {pairs / seconds:.2f} | {size / pairs / 1e6:.2f} MB |"


def label_line(scene: Path, weights: Path, pairs: int) -> str:
    """Seconds of a label of a real pair, each image's keypoints included once."""
    teacher = LightGlueTeacher(weights)
    config = LabelConfig(max_pairs=pairs)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        kept = label_scene(scene, Path(folder), teacher, config, progress=False)
        seconds = time.process_time() - start
        made = len(list(Path(folder).iterdir()))
    return (
        f"Labels of a teacher ({teacher.keypoints} ALIKED keypoints, LightGlue, images up to {config.longer_side} px): "
        f"{seconds / made:.1f} s per pair, its keypoints included, {kept} of {made} pairs verified."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, metavar="IMAGES")
    parser.add_argument("--features", nargs="+", default=["sift", "linpoint"], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=24, help="made for a row")
    parser.add_argument("--scene", type=Path, metavar="DIR", help="a scene to label")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="the teacher's weights")
    parser.add_argument("--label-pairs", type=int, default=12, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    images = ImageSet.in_folder(options.images)
    print("| front-end | source | views | pairs per second | storage of a pair |")
    print("|---|---|---:|---:|---:|")
    for features in options.features:
        for source in ("homography", "parallax"):
            for views in VIEWS:
                print(synthetic_row(images, features, source, views, options.pairs), flush=True)
    print(
        f"\n{options.pairs} pairs per row of {len(images)} images, {KEYPOINTS} keypoints, images of {SMALLEST_SIDE} to "
        f"{LONGER_SIDE} px; views of a synthetic scene, of which all pairs that overlap are used; seconds of CPU, "
        "one thread."
    )
    if options.scene and options.weights:
        print(label_line(options.scene, options.weights, options.label_pairs))


if __name__ == "__main__":
    main()
