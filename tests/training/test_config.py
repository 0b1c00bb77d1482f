from dataclasses import dataclass
from pathlib import Path

import pytest

from linglue.errors import LinGlueError
from linglue.training.config import RunConfig, read_config, read_toml


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_what_is_left_out_has_its_default(tmp_path):
    config = read_config(written(tmp_path, 'output = "here"\n[optimiser]\nsteps = 7\nrate = 1\n'))
    assert config.optimiser.steps == 7
    assert config.optimiser.rate == 1.0 and isinstance(config.optimiser.rate, float)
    assert config.data == RunConfig().data


def test_paths_start_at_the_file(tmp_path):
    config = read_config(written(tmp_path, 'output = "here"\n[data]\nimages = "p"\n'))
    assert config.output == tmp_path / "here"
    assert config.data.images == tmp_path / "p"


def test_lists_of_folders(tmp_path):
    @dataclass(frozen=True)
    class Folders:
        lists: tuple[Path, ...] = ()
        range: tuple[float, float] = (0.0, 1.0)

    found = read_toml(written(tmp_path, 'lists = ["a", "b/c"]\nrange = [1, 2.5]\n'), Folders)
    assert found == Folders((tmp_path / "a", tmp_path / "b/c"), (1.0, 2.5)) and isinstance(found.range[0], float)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[optimiser]\nstep = 7", ["optimiser.step", "steps"]),
        ('[optimiser]\nsteps = "many"', ["optimiser.steps", "many", "whole number"]),
        ("[optimiser]\nsteps = true", ["optimiser.steps", "whole number"]),
        ('[optimiser]\nloss = "magic"', ["magic", "hinge"]),
        ("[optimiser]\nbatch = 5\naccumulate = 2", ["batch", "5", "2"]),
        ("data = 3", ["data", "table"]),
        ('[data.sfm]\nheld_out = "a"', ["data.sfm.held_out", "list"]),
        ("[data]\nimages = 3", ["data.images", "3", "text"]),
        ("[optimiser]\nrate = -1e-3", ["optimiser.rate", "-0.001", "greater than 0"]),
        ("[optimiser]\nrate = nan", ["optimiser.rate", "nan", "finite"]),
        ("[optimiser]\ndecay = 1.5", ["optimiser.decay", "1.5", "1"]),
        ("[optimiser]\nclip = inf", ["optimiser.clip", "inf", "finite"]),
        ("[optimiser]\nsteps = 0", ["optimiser.steps", "0", "1"]),
        ("[optimiser]\nbfloat16 = 1", ["optimiser.bfloat16", "true or false"]),
        ("[data]\npairs = -5", ["data.pairs", "-5"]),
        ("[data]\nworkers = 0", ["data.workers", "0"]),
        ("[data]\nunrelated = 1", ["data.unrelated", "1", "less than 1"]),
        ("[data]\nhomography = -0.5", ["data.homography", "-0.5"]),
        ("[data]\nhomography = 0\nparallax = 0", ["data.homography", "data.parallax", "positive"]),
        ("[data]\nlonger_side = 100", ["data.longer_side", "100", "480"]),
        ("[data]\nkeypoints = 512\nfewest_keypoints = 600", ["data.fewest_keypoints", "600", "512"]),
        ("[data]\nkeypoints = 512\nmost_keypoints = 256", ["data.most_keypoints", "256", "fewest_keypoints"]),
        ("[data]\nkeypoints = 512\nfewest_keypoints = 64\nmost_keypoints = 600", ["data.most_keypoints", "600", "512"]),
        ("[data]\nfewest_keypoints = 300\nmost_keypoints = 256", ["data.fewest_keypoints", "300", "256"]),
        ('[network]\nconsensus_start = "a.safetensors"', ["consensus_start", "consensus"]),
        ("[data.teacher]\nshare = nan", ["data.teacher.share", "nan"]),
        ('[network]\npreset = "huge"', ["preset", "huge", "geo"]),
        ('[optimiser]\nloss = "transport"', ["transport", "Sinkhorn", "geo"]),
        ("output = 1979-05-27", ["1979-05-27", "date"]),
        ("what is this", ["not a TOML file"]),
    ],
)
def test_wrong_entries_are_named_in_one_line(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(LinGlueError) as caught:
        read_config(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    assert all(word in message for word in words)


def test_missing_file(tmp_path):
    with pytest.raises(LinGlueError, match=r"nothing\.toml"):
        read_config(tmp_path / "nothing.toml")
