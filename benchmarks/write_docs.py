"""Writes docs/benchmarks.md: every table in it comes out of the command printed above it.

    python benchmarks/write_docs.py [--work DIR] [--superpoint FILE] [--aliked FILE]

Needs the data of ../shared/data (or LINGLUE_DATA): oxford, epfl, photos. A front-end is measured if its weights are
given; `sift` always is. Predictions, matches and models are kept in the work folder, so that it can be interrupted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import code_sha256, file_sha256, settings_hash
from linglue.network.weights import packaged_weights

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("LINGLUE_DATA", ROOT.parent / "shared" / "data"))

HEAD = """# Benchmarks

Written by `python benchmarks/write_docs.py`; do not edit. All methods of a table see the very same keypoints and were
run together. Absolute times mean nothing here, so only ratios to mutual nearest neighbours are given. `linglue` is the
packaged network with matching, filter, consensus and completion; `linglue-nofilter` is mutual nearest neighbours of the
network's descriptors and shows what the network alone contributes.

The constants of matching, filter, consensus and completion were chosen on `entry-P10` and on validation pairs of
held-out images, so its rows flatter us; nothing was chosen on `oxford`, `fountain-P11` or `Herz-Jesus-P8`, but
their figures were seen in between. In reconstructions keypoints at one place count as one observation for all
matchers, not for COLMAP's own pipeline, which also exceeds the given number of keypoints by second orientations.
Matches of reconstructions are kept from run to run, so their times come from runs under different load: an order of
magnitude, no more.
"""


def printed(command: list[str], work: Path) -> str:
    """What a command prints, or the end of the script. Kept while code and weights stay: an interrupted run goes on."""
    shown = " ".join(command)
    features = command[command.index("--features") + 1] if "--features" in command else "sift"
    measured = {
        "command": shown,
        "package": code_sha256("."),
        "script": file_sha256(ROOT / command[0]) if command[0].endswith(".py") else "",
        "weights": file_sha256(packaged_weights(features)),
    }
    kept = work / "printed" / f"{settings_hash(measured)}.txt"
    if not kept.is_file():
        print(shown, file=sys.stderr)
        done = subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"failed: {shown}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(kept) as partial:
            partial.write_text(done.stdout.strip())
    return kept.read_text()


def _without_folder(word: str, work: Path) -> str:
    """A word of a command without the folders of this machine."""
    if word.startswith(str(work)):
        return "WORK"
    return Path(word).name if word.endswith(".pth") else word


def section(title: str, command: list[str], work: Path, verbatim: bool) -> str:
    """A heading, the command without paths of this machine, and what it printed."""
    output = printed(command, work)
    shown = " ".join(_without_folder(c, work) for c in command).replace(str(DATA), "$LINGLUE_DATA")
    body = f"```text\n{output}\n```" if verbatim else output.replace(str(DATA), "$LINGLUE_DATA")
    return f"\n## {title}\n\n```sh\npython {shown}\n```\n\n{body}\n"


def epfl(name: str, chosen: list[str], work: Path) -> str:
    """The paper's two scenes of the ETH benchmark at full resolution: models, and poses of images left out."""
    scenes = [str(DATA / "epfl" / scene) for scene in ("fountain-P11", "Herz-Jesus-P8")]
    setting = [
        *scenes,
        *chosen,
        "--max-keypoints",
        "10000",
        "--resize",
        "0",
        "--markdown",
        "-o",
        str(work / f"{name}-epfl"),
    ]
    peers = {"sift": "mnn,ratio,adalam,colmap", "superpoint": "ratio"}[name]
    model = ["-m", "linglue", "eval", "reconstruction", *setting, "--compare", peers]
    left_out = ["-m", "linglue", "eval", "localization", *setting, "--compare", "mnn,ratio"]
    text = section(f"{name}: reconstruction", model, work, verbatim=False)
    if name == "sift":
        text += section(f"{name}: localization, leave one out", left_out, work, verbatim=False)
    return text


def choices(superpoint: Path, work: Path) -> str:
    """Presets and losses in short trainings of one kind."""
    command = ["benchmarks/training_choices.py", str(DATA / "photos"), "-o", str(work / "superpoint-choices")]
    command += ["--features", "superpoint", "--extractor-weights", str(superpoint)]
    command += ["--pairs", "480", "--validation-pairs", "40", "--longer-side", "560", "--steps", "150"]
    return section("superpoint: presets and losses, short trainings", command, work, verbatim=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "benchmarks", help="predictions are kept here")
    parser.add_argument("--superpoint", type=Path, help="superpoint_v1.pth")
    parser.add_argument("--aliked", type=Path, help="aliked-n16.pth")
    options = parser.parse_args()
    front_ends = {"sift": None, "superpoint": options.superpoint, "aliked": options.aliked}
    text = HEAD
    for name, weights in front_ends.items():
        if weights is None and name != "sift":
            continue
        chosen = ["--features", name, *([] if weights is None else ["--extractor-weights", str(weights)])]
        setting = [*chosen, "--max-keypoints", "2048", "--resize", "1024", "--markdown"]
        setting += ["--compare", "mnn,ratio,adalam,linglue-nofilter"]
        for task, data in (("homography", DATA / "oxford"), ("pose", DATA / "epfl" / "entry-P10")):
            command = ["-m", "linglue", "eval", task, str(data), *setting, "-o", str(options.work / f"{name}-{task}")]
            text += section(f"{name}: {task}, {data.name}", command, options.work, verbatim=False)
        if name != "aliked":  # the front-ends of the paper
            text += epfl(name, chosen, options.work)
    if options.superpoint is not None:
        text += choices(options.superpoint, options.work)
    text += section("SIFT, graf 1→3: the filter against AdaLAM", ["benchmarks/graf.py"], options.work, verbatim=True)
    command = ["benchmarks/unrelated.py", str(DATA / "photos")]
    text += section("Images that have nothing in common", command, options.work, verbatim=False)
    title = "Time and memory against the number of keypoints"
    text += section(title, ["benchmarks/scalability.py"], options.work, verbatim=True)
    title = "Memory of the pipeline against the number of images"
    text += section(title, ["benchmarks/pipeline_memory.py"], options.work, verbatim=False)
    with atomic_path(ROOT / "docs" / "benchmarks.md") as partial:
        partial.write_text(text)


if __name__ == "__main__":
    main()
