"""docs/accuracy.md: pose on held-out scenes, extreme views, and how honest scores are; sections of `linglue eval all`.

    python benchmarks/accuracy.py SCENES [--data DATA] [-o WORK] [--quick] [--workers N] [--without NAME …] [--docs MD]

SCENES is a folder of scenes that benchmarks/pose_scenes.py made, DATA the one with evd/. The same as
`linglue eval all --only scenes planes scores`, in a document of its own; what is in WORK is not measured again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.evaluation.report import TITLES, about
from linglue.evaluation.sections import Suite
from linglue.evaluation.suite import DATA, run, stamps, write_suite

SECTIONS = ("scenes", "planes", "scores")
HEAD = """# Accuracy

Written by `python benchmarks/accuracy.py`. Scenes are image collections with poses from full reconstruction
(`benchmarks/pose_scenes.py`, cameras and pairs in `benchmarks/scenes`), planes are EVD, extreme views of flat scenes.
None was learned from, but models and the default `min_score` are chosen by them: expect a little less elsewhere. Poses
are of reconstructions from ALIKED's keypoints matched by LightGlue, which favours that method.
"""


def main() -> None:
    """Measure, print, and write the document if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get(DATA, "../shared/data")))
    parser.add_argument("-o", "--work", type=Path, default=Path("linglue-eval-all"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--without", nargs="+", default=(), metavar="METHOD", help="leave out, e.g. what takes hours")
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    suite = Suite(
        options.data,
        options.work,
        options.quick,
        scenes=options.scenes,
        without=tuple(options.without),
        workers=options.workers,
    )
    results, failed = run(suite, SECTIONS)
    write_suite(suite, results)
    parts = [HEAD.strip(), *about(stamps(suite, SECTIONS), options.quick)]
    for name, result in results.items():
        parts += [f"## {TITLES[name]}", result.text(markdown=True)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if options.docs is not None:
        with atomic_path(options.docs) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if failed:
        sys.exit("; ".join(f"{name}: {why}" for name, why in failed.items()))


if __name__ == "__main__":
    main()
