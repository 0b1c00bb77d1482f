"""The folder in which bad inputs are tried: good images, work folders and models, and one file of every trouble."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from skimage import data

from colmap_scene import all_pairs, write_scene
from linglue.cli import main
from linglue.features import make_extractor
from linglue.io.hloc import save_hloc_features
from linglue.io.npz import save_features
from linglue.network.linglue import LinGlue
from linglue.network.weights import packaged_weights, read_info
from linglue.types import Features
from rendered import render, write_images
from rendered_map import intrinsics, write_map

SMALL = ("--max-keypoints", "60", "--workers", "1", "--quiet")
TOML = {  # files of `linglue train` by name: text, and what the one line must say
    "no-toml": ("output = ", "not a TOML file"),
    "unknown-entry": ("outptu = 'run'", "unknown entry outptu"),
    "no-table": ("data = 3", "data is 3"),
    "text-for-number": ("[data]\npairs = 'many'", "data.pairs is 'many'"),
    "no-images": ("[data]\nimages = '../missing'", "missing: holds no images"),
    "empty-images": ("[data]\nimages = '../empty'", "empty: holds no images"),
    "few-images": ("[data]\nimages = '../photos'", "3 images, too few"),
    "images-file": ("[data]\nimages = '../photos/a.png'", "photos/a.png: holds no images"),
    "pairs-0": ("[data]\nimages = '../photos'\npairs = 0", "data.pairs is 0"),
    "negative-share": ("[data]\nimages = '../photos'\nhomography = -1.0", "data.homography is -1"),
    "no-share": (
        "[data]\nimages = '../photos'\nhomography = 0.0\nparallax = 0.0",
        "no-share.toml: data.homography and data.parallax are both 0",
    ),
    "unrelated-1": ("[data]\nimages = '../photos'\nunrelated = 1.0", "data.unrelated is 1.0"),
    "nan-unrelated": ("[data]\nimages = '../photos'\nunrelated = nan", "data.unrelated is nan"),
    "front-end": ("[data]\nimages = '../many'\nfeatures = 'orb'", "orb"),
    "views-1": ("[data]\nimages = '../photos'\nviews = 1", "data.views is 1"),
    "fewest": (
        "[data]\nimages = '../photos'\nkeypoints = 64\nfewest_keypoints = 128",
        "fewest.toml: data.fewest_keypoints is 128",
    ),
    "sfm-missing": (
        "[data]\nimages = '../many'\n[data.sfm]\nshare = 1.0\nreconstructions = '../missing'",
        "missing: no such folder",
    ),
    "teacher-missing": (
        "[data]\nimages = '../many'\n[data.teacher]\nshare = 1.0\nlabels = '../missing'",
        "missing: no such folder",
    ),
    "megadepth-missing": (
        "[data]\nimages = '../many'\n[data.megadepth]\nshare = 1.0\nroot = '../missing'",
        "missing/scene_info: no such folder",
    ),
    "preset": ("[data]\nimages = '../photos'\n[network]\npreset = 'huge'", "preset.toml: preset is 'huge'"),
    "start-missing": (
        "[data]\nimages = '../many'\n[network]\nstart = '../missing.safetensors'",
        "missing.safetensors: no such weights file",
    ),
    "start-text": (
        "[data]\nimages = '../many'\n[network]\nstart = '../text.safetensors'",
        "text.safetensors: not a safetensors file",
    ),
    "start-kind": (
        "[data]\nimages = '../many'\n[network]\nstart = '../kind.safetensors'",
        "kind.safetensors: a 'geo' network for 'superpoint'",
    ),
    "rate-nan": ("[data]\nimages = '../photos'\n[optimiser]\nrate = nan", "optimiser.rate is nan"),
    "rate-negative": ("[data]\nimages = '../photos'\n[optimiser]\nrate = -1.0", "optimiser.rate is -1"),
    "rate-inf": ("[data]\nimages = '../photos'\n[optimiser]\nrate = inf", "optimiser.rate is inf"),
    "steps-0": ("[data]\nimages = '../photos'\n[optimiser]\nsteps = 0", "optimiser.steps is 0"),
    "batch-parts": (
        "[data]\nimages = '../photos'\n[optimiser]\nbatch = 8\naccumulate = 3",
        "batch-parts.toml: optimiser.batch is 8",
    ),
    "loss": ("[data]\nimages = '../photos'\n[optimiser]\nloss = 'mse'", "optimiser.loss is 'mse'"),
    "transport": (
        "[data]\nimages = '../photos'\n[optimiser]\nloss = 'transport'",
        "transport.toml: optimiser.loss is 'transport'",
    ),
    "date": ("output = 2020-01-01", "a date or time"),
    "output-file": ("output = '../notes.txt'\n[data]\nimages = '../many'", "notes.txt: cannot be made a folder"),
}
FRONT_END_TOML = {  # files of `linglue train-features`
    "unknown": ("[lessons]\npictures = ['../photos']", "unknown entry lessons.pictures"),
    "missing": ("[lessons]\nimages = ['../missing']", "missing: no such folder"),
    "empty": ("[lessons]\nimages = ['../empty']\nteacher = 'sift'", "0 images to learn from"),
    "side": ("[lessons]\nimages = ['../photos']\n[crops]\nside = 100", "side.toml: crops.side is 100"),
    "rate": ("[lessons]\nimages = ['../photos']\n[learning]\nrate = nan", "rate.toml: learning.rate is nan"),
    "steps": ("[lessons]\nimages = ['../photos']\n[learning]\nsteps = -5", "learning.steps is -5"),
    "decay": ("[lessons]\nimages = ['../photos']\n[learning]\nweight_decay = -1.0", "learning.weight_decay is -1.0"),
    "cooldown": ("[lessons]\nimages = ['../photos']\n[learning]\ncooldown = -1", "learning.cooldown is -1"),
    "loss": ("[lessons]\nimages = ['../photos']\n[losses]\nheat = nan", "losses.heat is nan"),
    "held-out": ("[lessons]\nimages = ['../photos']\nheld_out = 2.0", "lessons.held_out is 2.0"),
    "teacher": ("[lessons]\nimages = ['../many']\nteacher = 'orb'", "orb"),
    "teacher-weights": ("[lessons]\nimages = ['../many']\nteacher_weights = '../missing.pth'", "missing.pth"),
    "start": (
        "start = '../missing.safetensors'\n[lessons]\nimages = ['../many']\nteacher = 'sift'",
        "missing.safetensors",
    ),
    "output": (
        "output = '../notes.txt'\n[lessons]\nimages = ['../photos']\nteacher = 'sift'",
        "notes.txt: cannot be made a folder",
    ),
}


def build(folder: Path) -> None:
    """Fill an empty folder."""
    previous = Path.cwd()
    os.chdir(folder)
    try:
        features = _images()
        _bad_images()
        _feature_files(features)
        _weights()
        _work_folders()
        _databases()
        _scenes()
        for place, texts in (("train", TOML), ("train-features", FRONT_END_TOML)):
            Path(place).mkdir()
            for name, (text, _) in texts.items():
                Path(place, f"{name}.toml").write_text(text + "\n")
    finally:
        os.chdir(previous)


def _run(*arguments: str) -> None:
    assert main(list(arguments)) == 0, arguments


def _images() -> Features:
    coffee = np.ascontiguousarray(data.coffee()[..., ::-1])
    for folder in ("photos", "one", "many"):
        Path(folder).mkdir()
    for number, name in enumerate("abc"):
        cv2.imwrite(f"photos/{name}.png", coffee[100:260, 80 + 30 * number : 280 + 30 * number])
    shutil.copy("photos/a.png", "one/a.png")
    for number in range(12):
        cv2.imwrite(f"many/{number}.png", coffee[10 * number : 10 * number + 200, 100:400])
    return make_extractor("sift").extract(Path("photos/a.png"), 60)


def _bad_images() -> None:
    for folder in ("empty", "only-text", "masks", "loop", "unusable", "folder.npz", "folder.png", "project", "demo"):
        Path(folder).mkdir()
    Path("notes.txt").write_text("mine\n")
    Path("demo/demo.png").write_text("mine\n")
    Path("only-text/notes.txt").write_text("mine\n")
    Path("empty.png").write_bytes(b"")
    Path("text.png").write_text("no picture\n" * 50)
    Path("cut.png").write_bytes(Path("photos/a.png").read_bytes()[:60])
    header = bytearray(Path("photos/a.png").read_bytes())
    header[16:24] = b"\x7f\xff\xff\xff" * 2  # width and height
    Path("huge.png").write_bytes(bytes(header))
    cv2.imwrite("tiny.png", np.zeros((2, 2, 3), np.uint8))
    cv2.imwrite("flat.png", np.full((100, 100, 3), 128, np.uint8))
    cv2.imwrite("masks/a.png", np.zeros((50, 50), np.uint8))
    cv2.imwrite("black.png", np.zeros((160, 200), np.uint8))
    shutil.copy("text.png", "unusable/a.png")
    shutil.copy("flat.png", "unusable/b.png")
    Path("loop/again").symlink_to(".", target_is_directory=True)
    Path("loop/circle.png").symlink_to("circle.png")
    for folder in ("copies", "line-break", "pipe"):
        Path(folder).mkdir()
        shutil.copy("photos/a.png", f"{folder}/a.png")
    shutil.copy("photos/a.png", "copies/b.png")
    shutil.copy("photos/b.png", "line-break/two\nlines.png")
    os.mkfifo("pipe/b.png")
    os.mkfifo("pipe.toml")
    Path("list-blank.txt").write_text("\n\n")
    Path("list.txt").write_text("missing.png\n")
    Path("list-escape.txt").write_text("../secret.png\n")
    Path("list-binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("pairs.tsv").write_text("a.png\tb.png\n")
    Path("pairs-self.tsv").write_text("a.png\ta.png\n")
    Path("pairs-three.tsv").write_text("a.png\tb.png\tc.png\n")
    Path("pairs-missing.tsv").write_text("a.png\tz.png\n")
    Path("pairs-empty.tsv").write_text("")
    Path("positions.csv").write_text("name,lat,lon\na.png,somewhere,3\n")
    Path("queries.txt").write_text("a.png PINHOLE\n")
    Path("queries-nan.txt").write_text("a.png PINHOLE 200 160 nan 100 100 80\n")
    Path("queries-model.txt").write_text("a.png FISHY 200 160 100 100 100 80\n")
    Path("queries-twice.txt").write_text("a.png PINHOLE 200 160 200 200 100 80\n" * 2)


def _feature_files(good: Features) -> None:
    size = good.image_size
    save_features("good.npz", good)
    save_features("none.npz", good.select(np.arange(0)))
    save_features("kind.npz", replace(good, kind="superpoint"))
    save_features("dim.npz", replace(good, descriptors=good.descriptors[:, :64]))
    with np.load("good.npz") as file:
        arrays = dict(file)
    wrong = {
        "nan": {"descriptors": np.full_like(good.descriptors, np.nan)},
        "short": {"scores": good.scores[:3]},
        "degrees": {"oris": np.linspace(0, 359, len(good)).astype(np.float32)},
        "outside": {"keypoints": good.keypoints + np.float32(10 * size.width)},
        "scale": {"scales": np.zeros(len(good), np.float32)},
        "size": {"image_size": np.array([0, 5])},
        "size-three": {"image_size": np.array([5, 5, 5])},
        "text": {"keypoints": np.array(["a", "b"])},
        "object": {"keypoints": np.array([{}, {}], dtype=object)},
    }
    for name, change in wrong.items():
        np.savez(f"{name}.npz", **{**arrays, **change})
    np.savez("lacking.npz", keypoints=arrays["keypoints"])
    Path("damaged.npz").write_bytes(b"PK\x03\x04 no zip")
    Path("list.json").write_text("[1, 2]")

    save_hloc_features("good.h5", [("a.png", good), ("b.png", good)])
    shorter = good.descriptors[:, :64] / np.linalg.norm(good.descriptors[:, :64], axis=1, keepdims=True)
    save_hloc_features("dim.h5", [("a.png", replace(good, descriptors=shorter))])
    save_hloc_features("degrees.h5", [("a.png", replace(good, oris=None))])
    with h5py.File("degrees.h5", "a") as file:
        file["a.png/oris"] = np.linspace(0, 359, len(good)).astype(np.float32)
    save_hloc_features("other-kind.h5", [("a.png", replace(good, descriptors=-good.descriptors))])
    Path("text.h5").write_text("no HDF5")
    with h5py.File("empty.h5", "w"):
        pass
    with h5py.File("lacking.h5", "w") as file:
        file["a.png/keypoints"] = good.keypoints
    with h5py.File("escape.h5", "w") as file:
        for key in ("keypoints", "descriptors", "image_size"):
            value = {"keypoints": good.keypoints, "descriptors": good.descriptors.T}.get(key, np.array(size))
            file[f"x/../../../escaped/{key}"] = value
    shutil.copy("good.h5", "cut.h5")
    with Path("cut.h5").open("r+b") as file:
        file.truncate(1000)


def _weights() -> None:
    network, info = LinGlue.load(packaged_weights("sift")), read_info(packaged_weights("sift"))
    state = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    header = {"config": info.config.to_json(), "kind": "sift", "preset": "geo", "licence": "", "training": ""}
    first = next(iter(state))
    layers = json.dumps({**json.loads(header["config"]), "layers": 10**9})
    save_file(state, "kind.safetensors", {**header, "kind": "superpoint"})
    save_file({**state, first: torch.full_like(state[first], torch.nan)}, "nan.safetensors", header)
    save_file({first: state[first]}, "lacking.safetensors", header)
    save_file({first: state[first]}, "huge.safetensors", {**header, "config": layers})
    save_file({first: state[first]}, "no-config.safetensors", {**header, "config": "{"})
    save_file({first: state[first]}, "foreign.safetensors")
    Path("text.safetensors").write_text("no weights")
    Path("text.pth").write_text("no weights")
    torch.save({1: torch.zeros(2), (2, 3): torch.zeros(1)}, "keys.pth")
    torch.save([1, 2, 3], "list.pth")
    Path("hostile.pth").write_bytes(pickle.dumps(_Hostile()))


class _Hostile:
    """Were it unpickled, it would leave a file behind."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("executed"),)


def _work_folders() -> None:
    _run("extract", "photos", "-o", "extracted", *SMALL)
    _run("extract", "photos", "-o", "work", *SMALL)
    _run("pairs", "work", "--quiet")
    _run("match-pairs", "work", "--matcher", "mnn", "--workers", "1", "--quiet")
    _run("import-hloc", "good.h5", "-o", "imported", "--features", "sift", "--quiet")
    for name in ("damaged-features", "damaged-matches", "damaged-record", "damaged-pairs", "gone"):
        shutil.copytree("work", name)
    Path("damaged-features/features.db").write_bytes(b"SQLite format 3\0" + b"junk" * 500)
    Path("damaged-matches/matches.db").write_bytes(b"no database at all " * 50)
    Path("damaged-record/linglue.json").write_text("{")
    Path("damaged-pairs/pairs.tsv").write_text("one name only\n")
    Path("gone/pairs.tsv").write_text("x.png\ty.png\n")
    for name, table in (("foreign-features", "features.db"), ("foreign-matches", "matches.db")):
        if name == "foreign-matches":
            shutil.copytree("extracted", name)
        else:
            Path(name).mkdir()
        connection = sqlite3.connect(f"{name}/{table}")
        connection.execute("CREATE TABLE mine (a)")
        connection.close()
    for name in ("database.db", "summary.json"):
        Path("project", name).write_text("mine\n")
    write_images(Path("room"), render(4)[:3])
    write_map(Path("map"), render(4)[:3])
    for name in ("map-junk-points", "map-cut-cameras", "map-without-images", "map-junk-images", "map-junk-retrieval"):
        shutil.copytree("map", name)
    Path("map-junk-retrieval/retrieval.npz").write_bytes(b"no zip")
    Path("map-junk-points/model/points3D.bin").write_bytes(b"\xff" * 300)
    cameras = Path("map-cut-cameras/model/cameras.bin")
    cameras.write_bytes(cameras.read_bytes()[:20])
    Path("map-without-images/model/images.bin").unlink()
    Path("map-junk-images/model/images.bin").write_bytes(b"\xff" * 300)
    Path("good-query.txt").write_text(f"room/view 0.png {intrinsics(render(4)[0])}\n")
    Path("poses.jsonl").write_text('{"mine": 1}\n')


def _databases() -> None:
    write_scene(Path("colmap.db"), all_pairs())
    changes = {
        "no-cameras": "DELETE FROM cameras",
        "no-descriptors": "DELETE FROM descriptors",
        "no-keypoints": "DELETE FROM keypoints",
        "no-images": "DELETE FROM images",
        "no-matches": "DELETE FROM matches",
        "blob-keypoints": "UPDATE keypoints SET data = x'00010203'",
        "blob-descriptors": "UPDATE descriptors SET data = x'00010203'",
        "rows": "UPDATE descriptors SET rows = 7",
        "negative-rows": "UPDATE keypoints SET rows = -1",
        "columns": "UPDATE descriptors SET cols = 64, data = substr(data, 1, rows * 64)",
        "lost-table": "DROP TABLE keypoints",
    }
    for name, change in changes.items():
        shutil.copy("colmap.db", f"{name}.db")
        connection = sqlite3.connect(f"{name}.db")
        connection.execute(change)
        connection.commit()
        connection.close()
    Path("text.db").write_text("no database\n" * 100)
    Path("empty.db").write_bytes(b"")


def _scenes() -> None:
    for name in ("hpatches", "hpatches-matrix", "hpatches-text", "hpatches-missing"):
        folder = Path(name, "v_scene")
        folder.mkdir(parents=True)
        shutil.copy("photos/a.png", folder / "1.png")
        shutil.copy("photos/b.png", folder / "2.png")
        (folder / "H_1_2").write_text("1 0 -30\n0 1 0\n0 0 1\n")
    Path("hpatches-matrix/v_scene/H_1_2").write_text("0 0 0\n0 0 0\n0 0 0\n")
    Path("hpatches-text/v_scene/H_1_2").write_text("one two three\n")
    Path("hpatches-missing/v_scene/H_1_2").unlink()
    for name, text in (("scene-junk", "no camera\n"), ("scene-nan", "nan " * 16 + "\n")):
        shutil.copytree("photos", f"{name}/images")
        Path(name, "gt").mkdir()
        for image in "abc":
            Path(name, "gt", f"{image}.png.txt").write_text(text)
    shutil.copytree("photos", "scene-without-gt/images")
