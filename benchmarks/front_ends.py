"""Front-ends with the same matcher: accuracy, repeatability, time and memory; the section of `linglue eval all`.

    python benchmarks/front_ends.py [--data DATA] [--scenes DIR] [-o WORK] [--quick] [--docs docs/models.md]

DATA is the folder with oxford/, evd/ and epfl/, DIR one of scenes that benchmarks/pose_scenes.py made; weights of the
others are in $LINGLUE_PEERS. What is in WORK is not measured again. `--docs` replaces the figures between the two marks
of a document.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.evaluation.report import about
from linglue.evaluation.sections import Suite
from linglue.evaluation.suite import DATA, run, stamps, write_suite

BEGIN = "<!-- begin figures: written by benchmarks/front_ends.py -->"
END = "<!-- end figures -->"


def main() -> None:
    """Measure, print, and write into the document if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get(DATA, "../shared/data")))
    parser.add_argument("--scenes", type=Path, help="folder of scenes with images/, gt/ and pairs.txt")
    parser.add_argument("-o", "--work", type=Path, default=Path("linglue-eval-all"))
    parser.add_argument("--quick", action="store_true", help="a few sequences and scenes only")
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    suite = Suite(options.data, options.work, options.quick, scenes=options.scenes)
    results, failed = run(suite, ["front-ends"])
    if failed:
        raise LinGlueError(failed["front-ends"])
    write_suite(suite, results)
    result = results["front-ends"]
    lines = [*about(stamps(suite, ["front-ends"]), options.quick), result.text(markdown=True)]
    lines += [f"{name}: no weights" for name in result.missing]
    text = "\n\n".join(lines)
    print(text)
    if options.docs is not None:
        write_between(options.docs, text)


def write_between(path: Path, text: str) -> None:
    """Replace what is between the two marks of a document."""
    before, mark, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise LinGlueError(f"{path}: has no marks, expected {BEGIN} and {END}")
    with atomic_path(path) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except LinGlueError as error:
        sys.exit(str(error))
