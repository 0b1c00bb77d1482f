"""Networks to disk and back, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from linglue.errors import LinGlueError
from linglue.network.linglue import LinGlue
from linglue.network.weights import PRESETS, LinGlueConfig, packaged_weights, read_info

SMALL = LinGlueConfig(input_dim=12, dim=16, heads=4, linear_blocks=1, pairwise_layers=1, geometry=True)
HEADER = {"kind": "sift", "preset": "geo", "licence": "Apache-2.0", "training": "none"}


@pytest.fixture
def saved(tmp_path) -> tuple[Path, LinGlue]:
    torch.manual_seed(0)
    network = LinGlue(SMALL)
    path = tmp_path / "net.safetensors"
    network.save(path, **HEADER)
    return path, network


def test_round_trip(saved):
    path, network = saved
    loaded, info = LinGlue.load(path), read_info(path)
    assert info.config == SMALL
    assert (info.kind, info.preset, info.licence, info.training) == tuple(HEADER.values())
    assert not loaded.training
    for name, value in network.state_dict().items():
        assert loaded.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(loaded.state_dict()[name], value, atol=1e-3, rtol=1e-3)


def test_stored_in_float16(saved):
    assert {t.dtype for t in load_file(saved[0]).values()} == {torch.float16}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_stored(preset, tmp_path):
    network = LinGlue(LinGlueConfig.preset(preset, 24))
    network.save(tmp_path / "a.safetensors", "sift", preset, "", "")
    assert LinGlue.load(tmp_path / "a.safetensors").config == network.config


def test_saving_again_replaces_the_file(saved):
    path, network = saved
    network.save(path, **{**HEADER, "kind": "disk"})
    assert read_info(path).kind == "disk"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file stays"


def test_failed_save_keeps_the_old_file(saved, monkeypatch):
    path, network = saved
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("linglue.network.weights.save_file", fail)
    with pytest.raises(LinGlueError, match="No space left"):
        network.save(path, **HEADER)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def one_line_error(path, text):
    for function in (read_info, LinGlue.load):
        with pytest.raises(LinGlueError) as caught:
            function(path)
        assert str(path) in str(caught.value)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    one_line_error(tmp_path / "none.safetensors", "no such weights file")
    one_line_error(tmp_path, "no such weights file")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 300, b"not weights at all\n" * 100])
def test_garbage(content, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    one_line_error(path, "not a safetensors file")


def test_truncated(saved):
    path = saved[0]
    path.write_bytes(path.read_bytes()[:-100])
    one_line_error(path, "not a safetensors file")


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    one_line_error(path, "not LinGlue weights, its header lacks config, kind, licence, preset, training")
    save_file({"a": torch.zeros(3)}, path, {"config": "{}", "kind": "sift"})
    one_line_error(path, "lacks licence, preset, training")


@pytest.mark.parametrize("config", ["not json", "[]", '{"dim": "many"}', '{"wings": 2}', '{"dim": 60}'])
def test_broken_configuration(config, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(3)}, path, {"config": config, **HEADER})
    one_line_error(path, "configuration")


@pytest.mark.parametrize("change", ["lacks", "extra", "shape"])
def test_every_tensor_must_fit(saved, change):
    path, network = saved
    state = {name: value.clone() for name, value in network.state_dict().items()}
    name = next(iter(state))
    if change == "lacks":
        del state[name]
    elif change == "extra":
        state["surplus"] = torch.zeros(2)
    else:
        state[name] = torch.zeros(3, 3)
    save_file(state, path, {"config": json.dumps(json.loads(SMALL.to_json())), **HEADER})
    with pytest.raises(LinGlueError, match="for the configuration in its header") as caught:
        LinGlue.load(path)
    assert "\n" not in str(caught.value)
    assert ("surplus" if change == "extra" else name) in str(caught.value)


def test_weights_that_are_no_numbers_are_refused(saved):
    path, network = saved
    state = {name: value.clone() for name, value in network.state_dict().items()}
    name = next(iter(state))
    state[name].view(-1)[0] = torch.nan
    save_file(state, path, {"config": SMALL.to_json(), **HEADER})
    with pytest.raises(LinGlueError, match=f"{name} holds NaN"):
        LinGlue.load(path)


def test_packaged_sift_weights_load():
    path = packaged_weights("sift")
    network, info = LinGlue.load(path), read_info(path)
    assert info.kind == "sift"
    assert network.config.input_dim == 128
    assert all(torch.isfinite(p).all() for p in network.parameters())
