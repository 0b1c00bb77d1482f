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
from linglue.io.colmap.database import open_database, read_images
from linglue.io.hloc import list_hloc_images, load_hloc_features, load_hloc_matches
from linglue.io.pair_list import read_pairs
from linglue.sfm.current import current_state
from linglue.sfm.workspace import Workspace

STEPS = 14
ALL_STEPS = ("add", "change", "delete", "extract", "settings", "kill", "pairs", "match", "import", "clean", "map")
SETTINGS = (("--max-keypoints", 60), ("--max-keypoints", 90), ("--max-keypoints", 90, "--resize", 100))
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

    def kill(self, settings: tuple[object, ...], rng: random.Random) -> None:
        """Extract in a process that is killed while it works in the folder."""
        command = [sys.executable, "-m", "linglue", "extract", self.images, "-o", self.work, *settings]
        command += ["--workers", 1, "--quiet", *(["--overwrite"] if self.imported else [])]
        process = subprocess.Popen([str(argument) for argument in command])
        while process.poll() is None and not (self.work / LOCK).exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.wait()
        with Workspace(self.work).features() as features:  # it may have replaced imported ones
            self.imported = features.imported()

    def reimport(self, scratch: Path) -> None:
        """Export the features and import them again, as another program's."""
        assert run("export", self.work, "--hloc-features", scratch / "own.h5") == 0
        assert run("import-hloc", scratch / "own.h5", "-o", self.work, "--features", "linpoint", "--overwrite") == 0
        self.imported = True


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
    for _ in range(STEPS):
        step = rng.choice(ALL_STEPS)
        if step == "add":
            folder.add()
        elif step in ("change", "delete"):
            getattr(folder, step)(rng)
        elif step == "extract":
            folder.extract(folder.settings)
        elif step == "settings":
            folder.extract(rng.choice(SETTINGS))
        elif step == "kill":
            settings = rng.choice(SETTINGS)
            folder.kill(settings, rng)
            assert run("status", folder.work) == 0  # what a killed run leaves can be read,
            folder.extract(settings)  # and the next one finishes its work
        elif step == "pairs":
            assert run("pairs", folder.work, *rng.choice(SOURCES)) == 0
        elif step == "match" and (folder.work / "pairs.tsv").is_file():
            matcher = rng.choice(MATCHERS)
            run("match-pairs", folder.work, "--workers", 1, "--matcher", matcher)
        elif step == "import":
            folder.reimport(scratch)
        elif step == "clean":
            assert run("clean", folder.work) == 0
        elif step == "map":
            check_map(folder.work)
        keypoints, matches = exported(folder.work, scratch)
        if step in ("extract", "settings", "kill"):
            shutil.rmtree(fresh, ignore_errors=True)
            assert run("extract", folder.images, "-o", fresh, *folder.settings, "--workers", 1) == 0
            assert keypoints == exported(fresh, scratch)[0]
        check_matches(folder.work, fresh, scratch, keypoints, matches, matcher)
    capfd.readouterr()


def check_map(work: Path) -> None:
    """COLMAP's database holds the current images and matches; a plane need not give a model."""
    pytest.importorskip("pycolmap")
    space = Workspace(work)
    with space.features() as features, space.matches() as matches:
        state = current_state(space, features, matches)
    code = run("map", work, "--camera-model", "PINHOLE")
    if not state.matched:
        assert code == 1
        return
    with open_database(space.database) as database:
        images = read_images(database)
        assert set(images) == {name for name, count in state.counts.items() if count}
        pairs = database.read_all_matches()
        assert len(pairs[0] if isinstance(pairs, tuple) else pairs) <= len(state.matched)
        for name, image in images.items():
            assert database.num_keypoints_for_image(image.image_id) == state.counts[name]


def check_matches(work, fresh, scratch, keypoints, matches, matcher) -> None:
    """All matches are of current images, and those that matching the exported features afresh gives."""
    if not matches:
        return
    assert set(matches) <= set(read_pairs(work / "pairs.tsv"))
    shutil.rmtree(fresh, ignore_errors=True)
    exported(work, scratch)
    assert run("import-hloc", scratch / "f.h5", "-o", fresh, "--features", "linpoint") == 0
    shutil.copy(work / "pairs.tsv", fresh / "pairs.tsv")
    assert run("match-pairs", fresh, "--workers", 1, "--matcher", matcher) == 0
    again, expected = exported(fresh, scratch)
    assert again == keypoints
    assert {pair: expected[pair] for pair in matches} == matches
