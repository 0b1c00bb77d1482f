"""Runs what docs/extending.md and docs/models.md show, as they show it."""

import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

import linglue
from linglue.cli import main
from linglue.core import registry
from linglue.features import EXTRACTORS, make_extractor
from linglue.io.npz import load_matches, save_features
from linglue.matcher import MATCHERS
from linglue.sfm.map import MAPPERS
from linglue.sfm.pairs import PAIR_SOURCES
from rendered import render

DOCS = Path(__file__).parents[1] / "docs"
EXTENDING = (DOCS / "extending.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def command(beginning: str) -> list[str]:
    (line,) = [line for block in blocks(EXTENDING, "bash") for line in block.splitlines() if line.startswith(beginning)]
    return shlex.split(line)[1:]


@pytest.fixture
def my_package(tmp_path, monkeypatch, pair) -> Iterator[ModuleType]:
    """The snippets as one importable file, in a folder with the images of the commands."""
    (tmp_path / "my_package.py").write_text("".join(blocks(EXTENDING, "python")))
    for name, image in (("a.png", pair.image0), ("b.png", pair.image1)):
        cv2.imwrite(str(tmp_path / name), image[..., ::-1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")  # of worker processes
    yield importlib.import_module("my_package")
    sys.modules.pop("my_package")


def test_every_example_is_short():
    assert len(blocks(EXTENDING, "python")) == 4
    assert max(block.count("\n") for block in blocks(EXTENDING, "python")) < 34


def test_the_front_end_matches(my_package, pair):
    assert main(command("linglue match a.png b.png --features my_package:Orb --matcher mnn")) == 0
    found = load_matches("matches.npz")
    errors = pair.errors(found.points0, found.points1)
    assert len(found) > 200 and (errors < 3).mean() > 0.5


def test_the_front_end_obeys_masks_and_limits(my_package, pair):
    mask = np.zeros(pair.image0.shape[:2], np.bool_)
    mask[100:300, 200:400] = True
    found = make_extractor("my_package:Orb").extract(pair.image0, 50, resize=300, mask=mask)
    assert found.kind == "orb" and 0 < len(found) <= 50 and (np.abs(found.keypoints - [300, 200]) < 101).all()
    assert len(make_extractor("my_package:Orb").extract(np.zeros((64, 64, 3), np.uint8))) == 0


def test_the_matcher_matches(my_package, pair, capsys):
    assert main(command("linglue match a.png b.png --features my_package:Orb --matcher my_package")) == 0
    assert "matches, pair score" in capsys.readouterr().out


def test_a_network_for_the_front_end(my_package, pair, capsys):
    (snippet,) = blocks((DOCS / "models.md").read_text(encoding="utf-8"), "python")
    descriptors = make_extractor("my_package:Orb").extract(pair.image0, 500).descriptors
    exec(snippet.replace("mine", "orb"), {"descriptors": descriptors, "D": 256})
    orb = ("--features", "my_package:Orb", "--weights", "orb.safetensors")
    assert main(["match", "a.png", "b.png", *orb]) == 0
    matcher = linglue.Matcher.from_pretrained("my_package:Orb", weights="orb.safetensors", device="cpu")
    for name, image in (("a.npz", pair.image0), ("b.npz", pair.image1)):
        save_features(name, matcher.extract(image, 500))
    assert main(["match", "a.npz", "b.npz", "--weights", "orb.safetensors"]) == 0
    capsys.readouterr()
    assert main(["match", "a.png", "b.png", "--features", "my_package:Orb"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no network for 'orb' features is packaged" in error


def test_all_four_reconstruct(my_package, capsys):
    pytest.importorskip("pycolmap")
    for view in render(8)[:4]:
        path = Path("images", view.name.replace("view ", "2024-05-01 view "))
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), view.image[..., ::-1])
    assert main([*command("linglue reconstruct"), "--max-keypoints", "800", "--workers", "1"]) == 0
    assert "4 of 4" in capsys.readouterr().out


def test_pair_sources_choose(my_package):
    class Request:
        names = ("room/2024-05-01 a.png", "room/2024-05-01 b.png", "room/2024-05-02 a.png")

    assert my_package.same_day(Request) == [("room/2024-05-01 a.png", "room/2024-05-01 b.png")]


def test_entry_points_give_short_names(my_package, monkeypatch):
    (text,) = blocks(EXTENDING, "toml")
    groups = tomllib.loads(text)["project"]["entry-points"]

    def offered(group):
        return [EntryPoint(name, value, group) for name, value in groups.get(group, {}).items()]

    monkeypatch.setattr(registry, "entry_points", offered)
    for known, name in ((EXTRACTORS, "orb"), (MATCHERS, "similar"), (PAIR_SOURCES, "same-day"), (MAPPERS, "larger")):
        assert name in known.names() and known.get(name) in vars(my_package).values()
    assert make_extractor("orb").kind == "orb"
