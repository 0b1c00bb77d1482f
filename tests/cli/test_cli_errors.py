"""Bad input: exit code 1, one line on standard error that names the file, no traceback, nothing written."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.io.hloc import save_hloc_features
from linglue.io.npz import save_features


@pytest.fixture
def bad(tmp_path, matcher, pair) -> Path:
    """A folder with one file of every trouble."""
    (tmp_path / "text.jpg").write_text("this is no picture\n" * 100)
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    cv2.imwrite(str(tmp_path / "tiny.png"), np.zeros((1, 1, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((200, 300, 3), 128, np.uint8))
    good = matcher.extract(pair.image0[:100, :200], 50)
    save_features(tmp_path / "good.npz", good)
    save_features(tmp_path / "none.npz", good.select(np.arange(0)))
    save_features(tmp_path / "kind.npz", replace(good, kind="superpoint"))
    save_features(tmp_path / "size.npz", replace(good, descriptors=good.descriptors[:, :32]))
    save_hloc_features(tmp_path / "good.h5", [("a.jpg", good)])
    with np.load(tmp_path / "good.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "nan.npz", **{**arrays, "descriptors": np.full_like(good.descriptors, np.nan)})
    np.savez(tmp_path / "lacking.npz", keypoints=arrays["keypoints"])
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / "text.h5").write_text("no HDF5")
    return tmp_path


SOURCES = {
    "missing.jpg": "no such image",
    "text.jpg": "JPEG, PNG",
    "empty.jpg": "JPEG, PNG",
    "folder.jpg": "is a folder, expected an image",
    "tiny.png": "1x1 pixels, expected at least 16x16",
    "grey.png": "no linpoint keypoint, expected at least one",
    "none.npz": "no linpoint keypoint, expected at least one",
    "nan.npz": "NaN or infinite values, expected finite numbers",
    "kind.npz": "'superpoint', expected 'linpoint'",
    "size.npz": "32 entries, expected 64",
    "lacking.npz": "descriptors is missing, expected",
    "damaged.npz": "damaged or not a .npz file",
    "missing.npz": "no such file",
    "text.h5::a.jpg": "not an HDF5 file",
    "good.h5::missing.jpg": "no image 'missing.jpg'",
    "good.h5": "good.h5::IMAGE",
}


def check_refused(outcome, folder: Path, before: set[Path], *wanted: str) -> None:
    assert outcome.code == 1
    assert outcome.err.endswith("\n") and outcome.err.count("\n") == 1, outcome.err
    for text in wanted:
        assert text in outcome.err
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("place", ["first", "second"])
def test_unusable_source(run, bad, images, source, place):
    before = set(bad.rglob("*"))
    two = (bad / source, images[1]) if place == "first" else (images[0], bad / source)
    outcome = run("match", *two, "-o", bad / "out.npz", "--max-keypoints", 100)
    check_refused(outcome, bad, before, str(bad / source).partition("::")[0], SOURCES[source])
    if place == "first":
        assert outcome.out == ""


def test_empty_pair(run, bad):
    before = set(bad.rglob("*"))
    outcome = run("match", bad / "none.npz", bad / "none.npz", "-o", bad / "out.json")
    check_refused(outcome, bad, before, "none.npz", "at least one")


OPTIONS = {
    "output folder missing": (("-o", "nowhere/m.npz"), ("nowhere/m.npz", "does not exist")),
    "output without suffix": (("-o", "m"), ("/m:", ".npz, .json")),
    "output with wrong suffix": (("-o", "m.txt"), ("m.txt", ".npz, .json")),
    "output is a folder": (("-o", "folder.npz"), ("folder.npz", "is a folder")),
    "picture folder missing": (("--draw", "nowhere/m.png"), ("nowhere/m.png", "does not exist")),
    "picture with wrong suffix": (("--draw", "m.gif"), ("m.gif", ".png")),
    "mask missing": (("--mask0", "mask.png"), ("mask.png", "no such image")),
    "mask of another size": (("--mask1", "grey.png"), ("grey.png", "300x200", "560x420")),
    "weights missing": (("--weights", "w.safetensors"), ("w.safetensors", "no such weights")),
    "weights are text": (("--weights", "text.jpg"), ("text.jpg", "not a safetensors file")),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_unusable_file_option(run, bad, images, case):
    (option, name), wanted = OPTIONS[case]
    (bad / "folder.npz").mkdir()
    before = set(bad.rglob("*"))
    outcome = run("match", *images, option, bad / name, "--max-keypoints", 100)
    check_refused(outcome, bad, before, *wanted)


VALUES = {
    "max keypoints": (("--max-keypoints", 0), "max_keypoints is 0, expected at least 1"),
    "resize": (("--resize", 3), "resize is 3, expected"),
    "tile": (("--tile", 10), "tile is 10, expected at least"),
    "device": (("--device", "abacus"), "'abacus'"),
    "weights for sift": (("--features", "sift", "--extractor-weights", "x.pth"), "x.pth"),
    "no weights for disk": (("--features", "disk"), "depth-save.pth"),
}


@pytest.mark.parametrize("case", VALUES)
def test_unusable_value(run, images, case):
    options, wanted = VALUES[case]
    check_refused(run("match", *images, *options), images[0].parent, set(images), wanted)


def test_a_drawing_needs_pictures(run, bad):
    before = set(bad.rglob("*"))
    outcome = run("match", bad / "good.npz", bad / "good.npz", "--draw", bad / "m.png")
    check_refused(outcome, bad, before, "good.npz", "--draw")


def test_masks_go_with_images(run, bad):
    before = set(bad.rglob("*"))
    outcome = run("match", bad / "good.npz", bad / "good.npz", "--mask0", bad / "grey.png")
    check_refused(outcome, bad, before, "grey.png", "good.npz")


def test_unknown_option_shows_the_usage(run, images):
    outcome = run("match", *images, "--nonsense")
    assert outcome.code == 2 and "--nonsense" in outcome.err


def test_no_traceback_in_a_process_of_its_own(bad, images):
    command = [sys.executable, "-m", "linglue", "match", str(bad / "text.jpg"), str(images[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"linglue match: \S+text\.jpg: [^\n]+\n", done.stderr)


def test_a_line_break_in_a_name_does_not_break_the_line(bad, run):
    done = run("match", bad / "two\nlines.jpg", bad / "good.npz")
    assert done.code == 1 and done.err.count("\n") == 1 and r"two\nlines.jpg: no such" in done.err


def test_names_that_the_terminal_cannot_show(images, tmp_path):
    odd = tmp_path / "ä€.jpg"
    odd.write_bytes(images[0].read_bytes())
    command = [sys.executable, "-m", "linglue", "extract", str(odd), "-o", str(tmp_path / "odd.npz")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and not done.stderr and r"\xe4\u20ac.jpg" in done.stdout
