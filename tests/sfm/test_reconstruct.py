"""From images of known geometry to camera poses: accurate, tolerant of bad files, and immune to kill −9."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from linglue.errors import LinGlueError
from linglue.io import images as io_images
from linglue.io.pair_list import write_pairs
from linglue.network.linglue import LinGlue
from linglue.sfm import extract
from linglue.sfm.cameras import CameraConfig
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.map import MappingConfig
from linglue.sfm.pairs import PairsConfig
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.sparse_model import aligned_errors, read_model
from linglue.sfm.store import MatchStore
from linglue.sfm.workspace import Workspace
from rendered import FOCAL, SIZE, render, write_images

pytest.importorskip("pycolmap")

CONFIG = ReconstructConfig(
    extract=ExtractConfig(max_keypoints=500),
    # COLMAP counts from the corner of the top-left pixel.
    cameras=CameraConfig(intrinsics=f"{FOCAL},{FOCAL},{SIZE.width / 2},{SIZE.height / 2}"),
    mapping=MappingConfig(threads=1),
    pictures=False,
)
VIEWS = 6


def truth():
    return {view.name: view.cam_from_world for view in render(VIEWS)}


def matches_of(path: Path) -> dict:
    with MatchStore(path) as store:
        return {pair: [values.tolist() for values in store.get(*pair)] for pair in store.counts()}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), render(VIEWS))


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    """One whole run with pictures, on one thread as the killed one, since threads may change last digits."""
    work, threads = Workspace(tmp_path_factory.mktemp("finished")), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work, reconstruct(images, work, replace(CONFIG, pictures=True))
    finally:
        torch.set_num_threads(threads)


def test_poses_are_those_of_the_cameras(finished):
    work, summary = finished
    assert (summary.model.images, summary.model.registered, summary.unregistered) == (VIEWS, VIEWS, ())
    assert summary.model.points > 150 and summary.model.track_length > 2.5
    assert summary.model.reprojection_error < 0.6
    assert summary.problems == summary.notes == ()
    positions, angles = aligned_errors(read_model(work.model), truth())
    # Metres at a distance of 6, and degrees: LinPoint prefers one side of what it detects, by about a pixel.
    assert max(positions.values()) < 0.02 and max(angles.values()) < 0.4


def test_everything_is_left_in_the_work_folder(finished):
    work, summary = finished
    names = ("features.db", "matches.db", "pairs.tsv", "database.db", "retrieval.npz", "summary.json")
    assert all((work.folder / name).is_file() for name in names)
    assert {path.name for path in work.model.iterdir()} >= {"cameras.bin", "images.bin", "points3D.bin"}
    assert {path.name for path in work.pictures.iterdir()} == {"model.png", "matches.png"}
    written = json.loads(work.summary.read_text())
    assert written["model"]["points"] == summary.model.points
    assert list(written["seconds"]) == [
        "extract", "pairs", "match", "database", "verification", "model", "retrieval", "pictures"
    ]  # fmt: skip


def test_a_second_run_redoes_nothing(images, finished):
    work, first = finished
    before = {path: path.stat().st_mtime_ns for path in [*work.model.iterdir(), work.database, work.retrieval]}
    again = reconstruct(images, work, replace(CONFIG, pictures=True))
    assert again.model == first.model
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_images_are_decoded_once_per_stage_and_models_built_once(tmp_path, monkeypatch):
    decoded: Counter[str] = Counter()
    built: Counter[str] = Counter()

    def counted(counter: Counter[str], function: Callable) -> Callable:
        def call(first, *others, **options):
            counter[str(first)] += 1
            return function(first, *others, **options)

        return call

    monkeypatch.setattr(io_images, "_decode", counted(decoded, io_images._decode))
    monkeypatch.setattr(LinGlue, "load", counted(built, LinGlue.load))
    monkeypatch.setattr(extract, "make_extractor", counted(built, extract.make_extractor))
    images = write_images(tmp_path / "images", render(VIEWS)[:3])
    first = reconstruct(images, Workspace(tmp_path / "work"), CONFIG)
    assert sorted(decoded.values()) == [2, 2, 2]  # for features, and for the colours of points
    decoded.clear()
    assert reconstruct(images, Workspace(tmp_path / "work"), CONFIG).model == first.model
    assert not decoded
    assert set(built.values()) <= {1}  # none where an earlier test of this process has built them


def test_changed_settings_change_the_model_and_keep_the_features(images, finished, tmp_path):
    work, first = finished
    other = Workspace(tmp_path / "work")
    subprocess.run(["cp", "-r", work.folder, other.folder], check=True)
    few = replace(CONFIG, pairs=PairsConfig("sequential", overlap=1, loop_every=0))
    second = reconstruct(images, other, few)
    assert second.matched_pairs == VIEWS - 1 < first.matched_pairs
    assert matches_of(other.matches_file) == matches_of(work.matches_file)  # no pair was matched again


def test_bad_files_are_a_line_each_and_the_rest_is_reconstructed(images, tmp_path):
    folder = tmp_path / "in"
    subprocess.run(["cp", "-r", images, folder], check=True)
    room = folder / "room"
    first, second, third = sorted(room.iterdir())[:3]
    (room / "copy.png").write_bytes(first.read_bytes())
    (room / "corrupt.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (room / "notes.txt").write_text("remember")
    cv2.imwrite(str(room / "black.png"), np.zeros((SIZE.height, SIZE.width, 3), np.uint8))
    # Stored lying on its side, as cameras do with portraits, and turned upright by EXIF.
    exif = Image.Exif()
    exif[274] = 8
    with Image.open(second) as image:
        image.transpose(Image.Transpose.ROTATE_270).save(room / "turned.jpg", exif=exif, quality=95)
    second.unlink()
    third.rename(third.with_suffix(".PNG"))
    summary = reconstruct(folder, Workspace(tmp_path / "work"), CONFIG)
    assert (summary.model.images, summary.model.registered) == (VIEWS, VIEWS)
    assert [problem.split(": ")[0] for problem in summary.problems] == [
        f"room/{name}" for name in ("notes.txt", "view 0.png", "black.png", "corrupt.jpg")
    ]
    assert summary.notes == ("room/turned.jpg: rotated upright as its EXIF says",)
    names = {
        "room/view 0.png": "room/copy.png",
        "room/view 1.png": "room/turned.jpg",
        "room/view 2.png": "room/view 2.PNG",
    }
    true = {names.get(name, name): pose for name, pose in truth().items()}
    positions, _ = aligned_errors(read_model(tmp_path / "work" / "model"), true)
    assert len(positions) == VIEWS and max(positions.values()) < 0.03


def test_a_list_may_name_what_turned_out_useless(images, tmp_path):
    folder = tmp_path / "in"
    subprocess.run(["cp", "-r", images, folder], check=True)
    (folder / "corrupt.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    names = [view.name for view in render(VIEWS)]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 : i + 3]]
    write_pairs(tmp_path / "pairs.tsv", [*pairs, ("corrupt.jpg", names[0])])
    config = replace(CONFIG, pairs=PairsConfig("list", pair_list=tmp_path / "pairs.tsv"))
    summary = reconstruct(folder, Workspace(tmp_path / "work"), config)
    assert summary.matched_pairs == len(pairs)


def test_one_image_is_not_enough(images, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(next(images.rglob("*.png")).read_bytes())
    with pytest.raises(LinGlueError, match="1 usable image, expected at least 2"):
        reconstruct(folder, Workspace(tmp_path / "work"), CONFIG)


def test_two_processes_on_one_folder_both_succeed(images, tmp_path):
    command = [sys.executable, "-m", "linglue", "reconstruct", str(images), "-o", str(tmp_path / "work"), "--json"]
    command += ["--max-keypoints", "400", "--workers", "1", "--pairs", "sequential", "--overlap", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    first, second = (json.loads(process.communicate(timeout=300)[0]) for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert first["model"] == second["model"] and first["model"]["registered"] == VIEWS


def test_killed_at_random_moments_it_ends_with_the_same_matches(images, finished, tmp_path):
    """At least 20 kills in one reconstruction; what it runs in is forked from a process that has all modules loaded."""
    driver = Path(__file__).with_name("killed_reconstruction.py")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    outcome = subprocess.run(
        [sys.executable, str(driver), str(images), str(tmp_path / "work")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["kills"] >= 20
    assert matches_of(tmp_path / "work" / "matches.db") == matches_of(finished[0].matches_file)
    assert report["registered"] == VIEWS
    assert not list((tmp_path / "work").glob(".linglue-*.part*"))
