"""A work folder tells the truth, and nothing in it that is not ours is ever lost."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.io.hloc import list_hloc_images, load_hloc_features, load_hloc_matches
from linglue.io.pair_list import Pair, read_pairs
from linglue.sfm.map import MappingConfig
from linglue.sfm.report import PairMatches, read_pair
from linglue.sfm.sparse_model import read_model, registered_names
from linglue.sfm.workspace import Workspace
from rendered import FOCAL, SIZE, render, write_images

VIEWS = 5
FEW = ("--max-keypoints", 300, "--workers", 1)
INTRINSICS = ("--intrinsics", f"{FOCAL},{FOCAL},{SIZE.width / 2},{SIZE.height / 2}")
NAMES = [view.name for view in render(VIEWS)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Images, and a finished work folder of four of the five."""
    from linglue.cli import main

    folder = tmp_path_factory.mktemp("made")
    write_images(folder / "images", render(VIEWS))
    last = folder / "images" / NAMES[-1]
    last.rename(folder / "last.png")
    command = ("reconstruct", folder / "images", "-o", folder / "work", *FEW, *INTRINSICS)
    assert main([str(argument) for argument in command]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def state(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".linglue.lock"}


def facts(outcome) -> dict:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def refused(outcome, wanted: str) -> None:
    assert outcome.code == 1 and outcome.err.count("\n") == 1, outcome.err
    assert wanted in outcome.err


def test_export_after_other_settings_pairs_no_old_indices_with_new_keypoints(run, folder):
    work, matches = folder / "work", folder / "matches.h5"
    run("extract", folder / "images", "-o", work, "--max-keypoints", 150, "--workers", 1)
    refused(run("export", work, "--hloc-matches", matches), "no current matches")
    assert not matches.exists()
    assert facts(run("match-pairs", work, "--json", "--workers", 1))["made"] == 6
    facts(run("export", work, "--hloc-matches", matches, "--hloc-features", folder / "features.h5", "--json"))
    for pair in read_pairs(work / "pairs.tsv"):
        indices, _ = load_hloc_matches(matches, *pair)
        assert indices.max() < 150 == len(load_hloc_features(folder / "features.h5", pair[0]))


def test_deleted_images_vanish_everywhere_and_come_back_for_nothing(run, folder):
    work, gone = folder / "work", folder / "images" / NAMES[1]
    gone.rename(folder / "gone.png")
    assert facts(run("extract", folder / "images", "-o", work, *FEW, "--json"))["stale"] == 1
    found = facts(run("export", work, "--hloc-features", folder / "f.h5", "--hloc-matches", folder / "m.h5", "--json"))
    assert (found["images"], found["pairs"]) == (3, 3) and len(found["problems"]) == 2
    assert NAMES[1] not in list_hloc_images(folder / "f.h5")
    matched = facts(run("match-pairs", work, "--workers", 1, "--json"))
    assert (matched["made"], matched["kept"]) == (0, 3)
    assert facts(run("pairs", work, "--json"))["pairs"] == 3
    (folder / "gone.png").rename(gone)
    assert facts(run("extract", folder / "images", "-o", work, *FEW, "--json"))["made"] == 0


def test_moved_images_are_found_where_they_are_now(run, folder):
    (folder / "images").rename(folder / "moved")
    found = facts(run("extract", folder / "moved", "-o", folder / "work", *FEW, "--json"))
    assert (found["made"], found["kept"]) == (0, 4)
    with Workspace(folder / "work").features() as store:
        assert store.paths() == {name: folder / "moved" / name for name in NAMES[:-1]}
        assert store.changed() == []


def test_an_image_of_the_same_size_and_time_but_other_content(run, folder):
    path = folder / "images" / NAMES[0]
    run("extract", folder / "images", "-o", folder / "work", *FEW)
    times, content = path.stat(), bytearray(path.read_bytes())
    other = (folder / "images" / NAMES[1]).read_bytes()[: len(content)].ljust(len(content), b"\0")
    path.write_bytes(other)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert facts(run("extract", folder / "images", "-o", folder / "work", *FEW, "--json"))["made"] == 0
    assert facts(run("extract", folder / "images", "-o", folder / "work", *FEW, "--verify", "--json"))["made"] == 1


@pytest.mark.parametrize("name", ["database.db", "model", "summary.json", "retrieval.npz", "pairs.tsv"])
def test_what_linglue_did_not_make_is_not_replaced(run, folder, name):
    project = folder / "project"
    project.mkdir()
    if name == "model":
        (project / name).mkdir()
        (project / name / "points3D.bin").write_bytes(b"mine")
    else:
        (project / name).write_bytes(b"mine")
    before = state(folder)
    command = ("reconstruct", folder / "images", "-o", project, *FEW, *INTRINSICS)
    refused(run(*command), f"{project / name}: was not made by LinGlue in this folder, expected another work folder")
    assert state(folder) == before
    assert run(*command, "--overwrite").code == 0
    assert state(folder) != before


@pytest.mark.parametrize("name", ["features.db", "matches.db"])
def test_another_programs_sqlite_file_is_refused(run, folder, name):
    project = folder / "project"
    project.mkdir()
    with sqlite3.connect(project / name) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    before = (project / name).read_bytes()
    refused(run("reconstruct", folder / "images", "-o", project, *FEW), "another program's SQLite file")
    assert (project / name).read_bytes() == before


@pytest.mark.parametrize("name", ["database.db", "pictures/model.png", "model/points3D.bin", "retrieval.npz", "model"])
def test_what_is_missing_in_a_finished_folder_is_made_again(run, folder, name):
    work = folder / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.bin")}
    path = work / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "unfinished or damaged" in facts(run("status", work, "--json"))["model"]["state"]
    run("reconstruct", folder / "images", "-o", work, *FEW, *INTRINSICS)
    assert path.exists()
    if not name.startswith("model"):
        assert {path: path.stat().st_mtime_ns for path in before} == before
    assert registered_names(read_model(work / "model")) == NAMES[:-1]


def test_a_finished_reconstruction_is_only_read(run, folder, monkeypatch):
    assert run("reconstruct", folder / "images", "-o", folder / "work", *FEW, *INTRINSICS).code == 0
    for name in ("features.base.open_image", "sfm.sparse_model.read_image", "sfm.scan.file_sha256"):
        monkeypatch.setattr(f"linglue.{name}", lambda *_, **__: pytest.fail("read again"))
    before = state(folder / "work")
    assert run("reconstruct", folder / "images", "-o", folder / "work", *FEW, *INTRINSICS).code == 0
    after = state(folder / "work")
    assert {path.name for path in before if before[path] != after[path]} <= {"matches.db", "features.db"}


def test_added_images_continue_the_model(run, folder):
    work = folder / "work"
    old = {i.name: i.image_id for i in read_model(work / "model").images.values()}
    (folder / "last.png").rename(folder / "images" / NAMES[-1])
    command = ("reconstruct", folder / "images", "-o", work, *FEW, *INTRINSICS, "--json")
    found = facts(run(*command))
    assert found["model"]["registered"] == VIEWS
    assert "the model of 4 images was continued" in found["notes"][0]
    new = {i.name: i.image_id for i in read_model(work / "model").images.values()}
    assert {name: new[name] for name in old} == old
    assert facts(run(*command))["model"] == found["model"]  # and it is finished
    (work / "database.db").unlink()
    error = pytest.approx(found["model"]["reprojection_error"])  # summed up in another order
    assert facts(run(*command))["model"] == {**found["model"], "reprojection_error": error}


@pytest.fixture
def one_thread(monkeypatch):
    """COLMAP with several threads decides about an observation or two of some 900 in another way every time."""
    monkeypatch.setattr(MappingConfig.__init__, "__defaults__", (MappingConfig.mapper, 1, MappingConfig.seed))


def test_map_makes_the_model_of_the_stores(run, folder, one_thread):
    work, other = folder / "alone", folder / "other"
    assert run("reconstruct", folder / "images", "-o", work, *FEW, *INTRINSICS).code == 0
    for arguments in (
        ("extract", folder / "images", "-o", other, *FEW),
        ("pairs", other),
        ("match-pairs", other, "--workers", 1),
    ):
        assert run(*arguments).code == 0
    with Workspace(work).matches() as whole, Workspace(other).matches() as staged:
        assert len(whole.rows()) == len(staged.rows()) == 6
        for pair in whole.rows():
            assert all(np.array_equal(a, b) for a, b in zip(whole.get(*pair), staged.get(*pair), strict=True))
    found = facts(run("map", other, *INTRINSICS, "--json"))
    assert found["model"]["registered"] == 4 and found["unregistered"] == []
    model = json.loads((work / "summary.json").read_text())["model"]
    assert found["model"] == pytest.approx(model, rel=1e-6)
    refused(run("map", folder / "images"), "holds no features.db")
    for name in ("model", "database.db"):
        assert (other / name).exists()


def test_imported_features_are_used_as_they_are(run, folder):
    work, other = folder / "work", folder / "other"
    run("export", work, "--hloc-features", folder / "f.h5")
    assert run("import-hloc", folder / "f.h5", "-o", other, "--features", "linpoint").code == 0
    with Workspace(other).features() as store:
        before = store.made_from()
    found = facts(run("reconstruct", folder / "images", "-o", other, "--workers", 1, *INTRINSICS, "--json"))
    assert found["model"]["registered"] == 4
    with Workspace(other).features() as store:
        assert store.made_from() == before and store.imported()
    refused(run("extract", folder / "images", "-o", other, *FEW), "holds imported features")
    refused(
        run("reconstruct", folder / "images", "-o", other, "--features", "disk"),
        "is disk, expected linpoint",
    )
    refused(run("import-hloc", folder / "f.h5", "-o", work, "--features", "linpoint"), "holds extracted features")
    assert run("extract", folder / "images", "-o", other, *FEW, "--overwrite").code == 0


def test_features_of_another_kind_are_not_mixed(run, folder):
    from linglue.io.hloc import save_hloc_features
    from linglue.types import Features

    rng = np.random.default_rng(0)
    for kind, dim in (("sift", 128), ("superpoint", 256)):
        descriptors = np.abs(rng.normal(size=(9, dim))) if kind == "sift" else rng.normal(size=(9, dim))
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
        found = Features(keypoints=rng.uniform(0, 99, (9, 2)), descriptors=descriptors, image_size=(99, 99))
        save_hloc_features(folder / f"{kind}.h5", [("a.jpg", found)])
    assert run("import-hloc", folder / "sift.h5", "-o", folder / "new", "--features", "sift").code == 0
    before = state(folder / "new")
    other = ("import-hloc", folder / "superpoint.h5", "-o", folder / "new", "--features", "superpoint")
    refused(run(*other), "holds sift features, expected superpoint")
    assert state(folder / "new").keys() == before.keys()
    with Workspace(folder / "new").features() as store:
        assert store.kind() == "sift"
    assert run(*other, "--overwrite").code == 0
    save_hloc_features(folder / "bad.h5", [("../../escaped", found)])
    refused(run("import-hloc", folder / "bad.h5", "-o", folder / "bad", "--features", "superpoint"), "../escaped")
    assert not (folder / "bad").exists()


def test_status_tells_what_is_current_without_heavy_packages(run, folder):
    work = folder / "work"
    found = facts(run("status", work, "--json"))
    assert (found["features"]["images"], found["pairs"]["matched"]) == (4, 6)
    assert found["model"]["state"] == "current" and found["bytes"]["features.db"] > 0
    run("extract", folder / "images", "-o", work, "--max-keypoints", 100, "--workers", 1)
    found = facts(run("status", work, "--json"))
    assert found["pairs"] == {"current": 6, "matched": 0, "to_match": 6, "stale": 6}
    assert found["model"]["state"].startswith("stale")
    code = (
        "import sys; from linglue.cli import main; code = main(['status', sys.argv[1]]); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'cv2')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(work)], capture_output=True).returncode == 0


def test_status_notices_what_changed_behind_its_back(run, folder):
    work = folder / "work"
    with (work / "model" / "points3D.bin").open("r+b") as file:
        file.truncate(100)
    assert facts(run("status", work, "--json"))["model"]["state"] == "unfinished or damaged: model"
    assert run("reconstruct", folder / "images", "-o", work, *FEW, *INTRINSICS).code == 0
    assert facts(run("status", work, "--json"))["model"]["state"] == "current"
    (folder / "images" / NAMES[0]).unlink()
    assert facts(run("status", work, "--json"))["features"]["changed"] == [NAMES[0]]
    assert run("match-pairs", work, "--matcher", "mnn", "--workers", 1).code == 0
    state = "stale: matches have changed since"
    assert facts(run("status", work, "--json"))["model"]["state"] == state
    assert facts(run("export", work, "--ply", folder / "p.ply", "--json"))["problems"] == [f"the model is {state}"]


def test_a_wrong_folder_makes_nothing_stale(run, folder):
    before = facts(run("status", folder / "work", "--json"))
    refused(run("extract", folder / "work", "-o", folder / "work", *FEW), "none of its images could be used")
    assert facts(run("status", folder / "work", "--json")) == before


def test_dense_points_and_reports_are_of_the_model_that_is_there(run, folder):
    pytest.importorskip("plotly")
    work, user = folder / "work", folder / "work" / "dense" / "mine.txt"
    assert "derived" not in facts(run("status", work, "--json"))
    dense = ("dense", work, "-o", folder / "points.ply", "--resize", 64, "--planes", 8, "--device", "cpu")
    assert run(*dense).code == 0 and run("report", work, "--points", 10, "--pairs", 0).code == 0
    user.write_text("mine")
    found = facts(run("status", work, "--json"))
    (kept,) = (path for path in user.parent.iterdir() if path != user)
    assert found["derived"] == {f"dense/{kept.name}": True, "report.html": True}
    assert found["bytes"]["dense"] > 0 and found["bytes"]["report.html"] > 0
    assert facts(run("clean", work, "--json"))["removed"] == []
    next((kept / "images").rglob("*.png")).unlink()
    assert run(*dense).code == 0 and len(list((kept / "images").rglob("*.png"))) == VIEWS - 1  # made again

    run("extract", folder / "images", "-o", work, "--max-keypoints", 200, "--workers", 1)
    assert run("match-pairs", work, "--workers", 1).code == 0
    assert "the model is stale" in run("report", work, "-o", folder / "r.html", "--points", 10, "--pairs", 0).out
    assert run("map", work, *INTRINSICS).code == 0
    assert facts(run("status", work, "--json"))["derived"] == {f"dense/{kept.name}": False, "report.html": False}
    assert facts(run("clean", work, "--json"))["removed"] == [str(kept), str(work / "report.html")]
    assert user.read_text() == "mine"
    (work / "report.html").write_text("mine")
    refused(run("report", work, "--points", 10, "--pairs", 0), "report.html: was not made by LinGlue in this folder")


def test_clean_removes_what_is_stale_and_only_ours(run, folder):
    work = folder / "work"
    run("extract", folder / "images", "-o", work, "--max-keypoints", 100, "--workers", 1)
    (work / "model" / "mine.txt").write_text("mine")
    assert facts(run("clean", work, "--json")) == {"images": 0, "pairs": 6, "removed": []}
    (work / "my.db").write_text("mine")
    removed = facts(run("clean", work, "--model", "--json"))["removed"]
    assert str(work / "database.db") in removed and (work / "my.db").exists()
    assert not (work / "summary.json").exists() and (work / "pairs.tsv").exists()
    assert (work / "model" / "mine.txt").read_text() == "mine" and not (work / "pictures").exists()


def test_colmaps_own_layout(run, folder, monkeypatch):
    project = folder / "project"
    shutil.copytree(folder / "images", project / "images")
    found = facts(run("reconstruct", project / "images", "-o", project, *FEW, *INTRINSICS, "--json"))
    assert (found["model"]["registered"], found["problems"]) == (4, [])
    monkeypatch.chdir(project / "images")
    for _ in range(2):
        found = facts(run("reconstruct", ".", "-o", ".", *FEW, *INTRINSICS, "--json"))
        assert (found["model"]["registered"], found["problems"]) == (4, [])


def test_a_folder_that_cannot_be_written_can_be_exported(run, folder, monkeypatch):
    work = folder / "work"
    before = state(work)
    for name in ("core.sqlite", "sfm.workspace"):
        monkeypatch.setattr(
            f"linglue.{name}.os.access", lambda path, mode: not Path(path).is_relative_to(work), raising=True
        )
    assert run("export", work, "--hloc-features", folder / "f.h5", "--ply", folder / "p.ply").code == 0
    assert run("status", work).code == 0
    assert state(work) == before


def test_a_report_about_a_folder_that_cannot_be_written(run, folder, monkeypatch):
    pytest.importorskip("plotly")
    work = folder / "work"
    before = state(work)
    for name in ("core.sqlite", "sfm.workspace", "io.colmap.database", "cli.report"):
        monkeypatch.setattr(
            f"linglue.{name}.os.access", lambda path, mode: not Path(path).is_relative_to(work), raising=True
        )
    refused(run("report", work), "cannot be written, expected a file elsewhere: -o FILE.html")
    opened: list[Path] = []

    def spy(path: Path, pair: Pair) -> PairMatches:
        opened.append(path)
        return read_pair(path, pair)

    monkeypatch.setattr("linglue.sfm.report.read_pair", spy)
    assert run("report", work, "-o", folder / "report.html").code == 0
    assert "Best pairs" in (folder / "report.html").read_text(encoding="utf-8")
    assert opened and work not in {path.parent for path in opened}  # pycolmap would have wanted to write
    assert state(work) == before


def test_the_model_for_other_programs(run, folder):
    pycolmap = pytest.importorskip("pycolmap")
    assert run("export", folder / "work", "--ply", folder / "p.ply", "--undistorted", folder / "3dgs").code == 0
    assert (folder / "p.ply").read_bytes().startswith(b"ply")
    refused(run("export", folder / "work", "--model-text", folder / "text"), "white space")
    assert not (folder / "text").exists()
    flat = pycolmap.Reconstruction(folder / "3dgs" / "sparse" / "0")
    assert {camera.model.name for camera in flat.cameras.values()} == {"PINHOLE"}
    assert {p.name for p in (folder / "3dgs").iterdir()} == {"images", "sparse", "transforms.json", "points.ply"}
    sizes = {cv2.imread(str(folder / "3dgs" / "images" / name)).shape[:2] for name in NAMES[:-1]}
    assert sizes == {(camera.height, camera.width) for camera in flat.cameras.values()}
    refused(run("export", folder / "work", "--undistorted", folder / "3dgs"), "exists already, expected a new folder")


def test_only_the_images_of_a_list(run, folder):
    (folder / "list.txt").write_text(f"{NAMES[0]}\n# a comment\n{NAMES[2]}\nmissing.jpg\n")
    command = ("extract", folder / "images", "-o", folder / "new", "--image-list", folder / "list.txt", *FEW, "--json")
    found = facts(run(*command))
    assert found["images"] == 2 and found["problems"] == [f"missing.jpg: no such file in {folder / 'images'}, left out"]
    (folder / "list.txt").write_text("../last.png\n")
    refused(run(*command[:-1]), "'../last.png', expected a plain path below a folder")
