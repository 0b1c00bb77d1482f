"""The ablation: which networks are found, which methods they make, and the tables."""

from pathlib import Path

import pytest
import torch

from evaluation.tasks.test_homography import write_data_set
from linglue.errors import LinGlueError
from linglue.evaluation.tasks import ablation
from linglue.matcher import Matcher
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig
from linglue.sfm.extract import ExtractConfig


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """A network of preset `linear` that returns its input."""
    network = LinGlue(LinGlueConfig.preset("linear", 128))
    network.initialise_identity(torch.eye(128, 64))
    network.save(tmp_path / "linear.safetensors", "sift", "linear", "none", "none")
    return tmp_path / "linear.safetensors"


def test_networks_are_those_of_the_package_and_the_given(linear: Path) -> None:
    assert set(ablation.find_networks("sift")) == {"geo", "raw"}
    assert ablation.find_networks("sift", [linear])["linear"] == linear
    with pytest.raises(LinGlueError, match="made for 'sift' features, expected one for 'aliked'"):
        ablation.find_networks("aliked", [linear])


def test_every_network_with_three_heads_and_its_neighborhoods(linear: Path) -> None:
    names = list(ablation.variants("sift", {"linear": linear, "geo": ablation.find_networks("sift")["geo"]}))
    assert names[:5] == ["mnn", "adalam", "linear, no filter", "linear, paper's filter", "linear, filter"]
    assert names[5:] == [
        "geo, no filter",
        "geo, paper's filter",
        "geo, filter",
        "geo, learned consensus",
        "geo, no separation",
        "geo, no separation, from input",
    ]


def test_a_learned_consensus_is_a_row_beside_the_filters() -> None:
    names = list(ablation.variants("linpoint", ablation.find_networks("linpoint")))
    assert names[-2:] == ["raw, filter", "raw, learned consensus"] and "raw, paper's filter" in names


def test_a_folder_of_networks(linear: Path) -> None:
    (linear.parent / "other.safetensors").write_bytes(b"no network")
    assert ablation.find_networks("sift", folder=linear.parent)["linear"] == linear
    assert "linear" not in ablation.find_networks("aliked", folder=linear.parent)
    with pytest.raises(LinGlueError, match="no such folder, expected one with networks"):
        ablation.find_networks("sift", folder=linear.parent / "none")


def test_a_variant_changes_the_neighborhoods_and_nothing_else() -> None:
    plain = Matcher.for_features("sift")
    variant = ablation.Variant(features="sift", separation=False, select_from_input=True).build()
    assert plain.network.config.separation and not variant.network.config.separation
    assert variant.network.config.select_from_input
    assert variant.settings["network_sha256"] != plain.settings["network_sha256"]


def test_tables_by_number_of_keypoints(tmp_path: Path, linear: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("poselib")
    pytest.importorskip("kornia")
    data = write_data_set(tmp_path / "data")
    monkeypatch.setattr(ablation, "find_networks", lambda kind, given, folder: {"linear": linear})
    extract = ExtractConfig(features="sift", resize=300)
    result = ablation.evaluate([data], [], tmp_path / "work", extract, keypoints=(100, 200))
    accuracy = result.tables[0]
    assert accuracy.header == ("homography: MMA@3", "100", "200")
    assert [row[0] for row in accuracy.rows][:5] == list(ablation.variants("sift", {"linear": linear}))
    assert ("geo", "no weights", "no weights") in accuracy.rows
    assert result.summary["homography 200"]["mnn"]["correct"] > result.summary["homography 100"]["mnn"]["correct"]
    with pytest.raises(LinGlueError, match="no data to measure on"):
        ablation.evaluate([], [], tmp_path)
