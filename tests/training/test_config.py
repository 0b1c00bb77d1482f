from pathlib import Path

import pytest

from linglue.errors import LinGlueError
from linglue.training.config import RunConfig, read_config


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
    config = read_config(written(tmp_path, 'output = "here"\n[data]\nphotos = "p"\n'))
    assert config.output == tmp_path / "here"
    assert config.data.photos == tmp_path / "p"


def test_lists_of_folders(tmp_path):
    text = '[data.sfm]\nshare = 0.5\nreconstructions = ["a", "b/c"]\n'
    source = read_config(written(tmp_path, text)).data.sfm
    assert source.share == 0.5 and source.reconstructions == (tmp_path / "a", tmp_path / "b/c")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[optimiser]\nstep = 7", ["optimiser.step", "steps"]),
        ('[optimiser]\nsteps = "many"', ["optimiser.steps", "many", "whole number"]),
        ("[optimiser]\nsteps = true", ["optimiser.steps", "whole number"]),
        ('[optimiser]\nloss = "magic"', ["magic", "hinge"]),
        ("[optimiser]\nbatch = 5\naccumulate = 2", ["batch", "5", "2"]),
        ("data = 3", ["data", "table"]),
        ('[data.sfm]\nreconstructions = "a"', ["data.sfm.reconstructions", "list"]),
        ('[data.teacher]\nimages = ["a"]', ["data.teacher", "labels"]),
        ('[data.teacher]\nimages = ["a"]\nlabels = ["b"]\nheld_out = ["c"]', ["data.teacher.held_out", "c", "a"]),
        ('[data.sfm]\nshare = 1\nreconstructions = ["a"]\nheld_out = ["a"]', ["data.sfm", "none of 1"]),
        ("[data.sfm]\nshare = 1", ["data.sfm", "none of 0"]),
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
