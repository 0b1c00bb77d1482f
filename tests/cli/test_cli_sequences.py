"""Random sequences of commands on one work folder: what it exports is at any time what a fresh folder would give."""

import itertools
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.cli import main
from linglue.core.lock import LOCK
from linglue.io.colmap.database import open_database, read_images, read_matches
from linglue.io.hloc import list_hloc_images, load_hloc_features, load_hloc_matches
from linglue.io.pair_list import read_pairs
from linglue.sfm.current import current_state
from linglue.sfm.map_stores import first_at_point, merge_points
from linglue.sfm.workspace import Workspace

EXTRA = 4  # steps of a sequence beside one of every kind
ALL_STEPS = (
    *("add", "change", "delete", "extract", "settings", "pairs", "match", "import", "clean", "map"),
    *("kill extract", "kill match", "kill map"),
)
SIFT = ("--features", "sift")
SETTINGS = (
    (*SIFT, "--max-keypoints", 60),
    (*SIFT, "--max-keypoints", 90),
    (*SIFT, "--max-keypoints", 90, "--resize", 100),
)
SOURCES = (("--pairs", "exhaustive"), ("--pairs", "sequential", "--overlap", 1, "--loop-every", 0))
MATCHERS = ("mnn", "ratio")  # without a network: fast


def run(*arguments: object) -> int:
    return main([str(argument) for argument in (*arguments, "--json")])


def write_image(path: Path, seed: int) -> None:
    """A piece of one textured plane, so that all images match."""
    rng = np.random.default_rng(7)
    plane = cv2.resize(rng.integers(0, 255, (40, 60, 3), np.uint8), (300, 200), interpolation=cv2.INTER_CUBIC)
    x, y = np.random.default_rng(seed).integers(0, 60, 2)
    cv2.imwrite(str(path), plane[y : y + 140, x : x + 200])


class Folder:
    """A work folder, its images, and what was asked for last."""

    def __init__(self, folder: Path) -> None:
        self.images, self.work = folder / "images", folder / "work"
        self.settings: tuple[object, ...] = ()
        self.imported = False
        self.images.mkdir()
        self.numbers = itertools.count()
        for _ in range(3):
            self.add()
        self.extract()

    def add(self) -> None:
        number = next(self.numbers)
        write_image(self.images / f"{number}.png", number)

    def change(self, rng: random.Random) -> None:
        write_image(rng.choice(sorted(self.images.iterdir())), 100 + next(self.numbers))

    def delete(self, rng: random.Random) -> None:
        if len(list(self.images.iterdir())) > 3:
            rng.choice(sorted(self.images.iterdir())).unlink()

    def extract(self, settings: tuple[object, ...] = SETTINGS[0]) -> None:
        overwrite = ("--overwrite",) if self.imported else ()
        assert run("extract", self.images, "-o", self.work, *settings, "--workers", 1, *overwrite) == 0
        self.settings, self.imported = settings, False

    def kill(self, rng: random.Random) -> None:
        """Extract in a process that is killed while it works in the folder; another finishes its work."""
        settings = rng.choice(SETTINGS)
        overwrite = ["--overwrite"] if self.imported else []
        kill(self.work, rng, "extract", self.images, "-o", self.work, *settings, "--workers", 1, *overwrite)
        with Workspace(self.work).features() as features:  # it may have replaced imported ones
            self.imported = features.imported()
        self.extract(settings)

    def reimport(self, scratch: Path) -> None:
        """Export the features and import them again, as another program's."""
        assert run("export", self.work, "--hloc-features", scratch / "own.h5") == 0
        assert run("import-hloc", scratch / "own.h5", "-o", self.work, *SIFT, "--overwrite") == 0
        self.imported = True


def kill(work: Path, rng: random.Random, *arguments: object) -> None:
    """Run a command in a process that is killed while it works in the folder; what it leaves can be read."""
    (work / LOCK).unlink(missing_ok=True)  # of a process that was killed before
    command = [sys.executable, "-m", "linglue", *arguments, "--quiet"]
    process = subprocess.Popen([str(argument) for argument in command])
    while process.poll() is None and not (work / LOCK).exists():
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.2))
    process.kill()
    process.wait()
    assert run("status", work) == 0


def exported(work: Path, scratch: Path) -> tuple[dict, dict]:
    """Keypoints by image and matches by pair, as `linglue export` writes them."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    assert run("export", work, "--hloc-features", scratch / "f.h5") == 0
    keypoints = {
        name: load_hloc_features(scratch / "f.h5", name).keypoints.tolist()
        for name in list_hloc_images(scratch / "f.h5")
    }
    space, found = Workspace(work), {}
    if space.matches_file.is_file():
        with space.features() as features, space.matches() as matches:
            pairs = list(current_state(space, features, matches).matched)
        code = run("export", work, "--hloc-matches", scratch / "m.h5")
        assert code == (0 if pairs else 1)
        found = {pair: sorted(load_hloc_matches(scratch / "m.h5", *pair)[0].tolist()) for pair in pairs}
    return keypoints, found


@pytest.mark.parametrize("seed", range(4))
def test_a_folder_gives_what_a_fresh_one_would(tmp_path, seed, capfd):
    rng = random.Random(seed)
    folder, scratch = Folder(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    fresh = tmp_path / "fresh"
    matcher: str | None = None
    expected = exported(folder.work, scratch)[0]
    for step in sequence(rng):
        pairs = (folder.work / "pairs.tsv").is_file()
        if step == "add":
            folder.add()
        elif step in ("change", "delete", "kill extract"):
            getattr(folder, step.split()[0])(rng)
        elif step == "extract":
            folder.extract(folder.settings)
        elif step == "settings":
            folder.extract(rng.choice(SETTINGS))
        elif step == "pairs":
            assert run("pairs", folder.work, *rng.choice(SOURCES)) == 0
        elif step in ("match", "kill match") and pairs:
            matcher = rng.choice(MATCHERS)
            command = ("match-pairs", folder.work, "--workers", 1, "--matcher", matcher)
            if step == "kill match":
                kill(folder.work, rng, *command)
            run(*command)
        elif step == "import":
            folder.reimport(scratch)
        elif step == "clean":
            assert run("clean", folder.work) == 0
        elif step in ("map", "kill map"):
            if step == "kill map" and (folder.work / "matches.db").is_file():
                kill(folder.work, rng, "map", folder.work, "--camera-model", "PINHOLE")
            check_map(folder.work)
        if step in ("extract", "settings", "kill extract"):
            shutil.rmtree(fresh, ignore_errors=True)
            assert run("extract", folder.images, "-o", fresh, *folder.settings, "--workers", 1) == 0
            expected = exported(fresh, scratch)[0]
        keypoints, matches = exported(folder.work, scratch)
        assert keypoints == expected, step
        check_matches(folder.work, fresh, scratch, keypoints, matches, matcher)
    capfd.readouterr()


def sequence(rng: random.Random) -> list[str]:
    """Every kind of step and some again, in any order, but matching must get something to match."""
    steps = [*ALL_STEPS, *rng.choices(ALL_STEPS, k=EXTRA)]
    rng.shuffle(steps)
    return ["pairs", "match", *steps]


def check_map(work: Path) -> None:
    """COLMAP's database holds the current images and matches; a plane need not give a model."""
    pytest.importorskip("pycolmap")
    space = Workspace(work)
    code = run("map", work, "--camera-model", "PINHOLE")
    with space.features() as features, space.matches() as matches:
        state = current_state(space, features, matches)
        first = {name: first_at_point(features.keypoints(name).keypoints) for name in state.counts}
        expected = {(a, b): merge_points(matches.get(a, b)[0], first[a], first[b]) for a, b in state.matched}
    if not expected:
        assert code == 1
        return
    with open_database(space.database) as database:
        images = read_images(database)
        assert set(images) == {name for name, count in state.counts.items() if count}
        for name, image in images.items():
            assert database.num_keypoints_for_image(image.image_id) == state.counts[name]
        assert database.num_matched_image_pairs() == sum(len(found) > 0 for found in expected.values())
        for (a, b), found in expected.items():
            assert sorted(read_matches(database, images[a], images[b]).tolist()) == sorted(found.tolist())


def check_matches(work, fresh, scratch, keypoints, matches, matcher) -> None:
    """All matches are of current images, and those that matching the exported features afresh gives."""
    if not matches:
        return
    assert set(matches) <= set(read_pairs(work / "pairs.tsv"))
    shutil.rmtree(fresh, ignore_errors=True)
    exported(work, scratch)
    assert run("import-hloc", scratch / "f.h5", "-o", fresh, *SIFT) == 0
    shutil.copy(work / "pairs.tsv", fresh / "pairs.tsv")
    assert run("match-pairs", fresh, "--workers", 1, "--matcher", matcher) == 0
    again, expected = exported(fresh, scratch)
    assert again == keypoints
    assert {pair: expected[pair] for pair in matches} == matches
