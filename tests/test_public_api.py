"""The public interface, as other programs call it (docs/architecture.md)."""

import hashlib
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

import linglue
from linglue.network.weights import PACKAGED


def test_unknown_preset_names_the_allowed_ones():
    with pytest.raises(linglue.LinGlueError, match="pair-wo-sep-inp"):
        linglue.LinGlueConfig.preset("medium")


def test_everything_public_is_there():
    wanted = {"Features", "LinGlue", "LinGlueConfig", "Matcher", "Matches", "MatchingConfig", "presets", "__version__"}
    assert wanted <= set(linglue.__all__) <= set(dir(linglue))
    assert all(hasattr(linglue, name) for name in linglue.__all__)
    with pytest.raises(AttributeError, match="'linglue' has no attribute 'Glue'"):
        linglue.Glue  # noqa: B018


def loaded(program: str) -> set[str]:
    """Packages beside Python's own that are loaded after running `program` in a new process."""
    tell = "print('loaded', *{m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    code = f"import sys\ntry:\n    {program}\nexcept SystemExit:\n    pass\n{tell}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = set(done.stdout.splitlines()[-1].split()[1:])
    return {name for name in packages if not name.startswith(("_", "sitecustomize", "editable"))}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], [], ["mach"], ["match", "--help"], ["match"], ["match", "a", "b", "--mak"]]
)
def test_help_and_usage_errors_load_nothing_heavy(arguments):
    """Two seconds of torch, OpenCV and matplotlib would be lost on each of them."""
    assert loaded(f"from linglue.cli import main; main({arguments})") <= {"linglue"}


def test_importing_loads_nothing_that_is_not_needed():
    assert loaded("import linglue; linglue.__version__") <= {"linglue"}
    light = loaded("import linglue; linglue.Matcher")
    assert not light & {"kornia", "transformers", "matplotlib", "skimage", "h5py", "pycolmap"}


def test_presets_say_what_can_be_loaded():
    found = {str(model["name"]): model for model in linglue.presets()}
    assert found["sift"]["dim"] == 128 and found["sift"]["network_licence"] == "Apache-2.0"
    for model in found.values():
        assert {"name", "dim", "network", "network_dim", "training", "network_licence", "features_licence"} <= set(
            model
        )


def test_every_packaged_network_has_a_card_with_its_checksum():
    files = sorted(PACKAGED.glob("*.safetensors"))
    assert files
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() in path.with_suffix(".md").read_text(encoding="utf-8")


def test_unknown_front_end_names_the_allowed_ones():
    with pytest.raises(linglue.LinGlueError, match=r"'orb'.*sift"):
        linglue.Matcher.from_pretrained("orb")


def test_front_end_without_its_weights_says_which_file():
    with pytest.raises(linglue.LinGlueError, match=r"superpoint_v1\.pth"):
        linglue.Matcher.from_pretrained("superpoint")


def test_extract_takes_path_numpy_and_torch(matcher, images, pair):
    from_path = matcher.extract(images[0], max_keypoints=300, resize=512)
    from_text = matcher.extract(str(images[0]), max_keypoints=300, resize=512)
    from_array = matcher.extract(pair.image0, max_keypoints=300, resize=512)
    tensor = torch.from_numpy(pair.image0).permute(2, 0, 1) / 255
    from_tensor = matcher.extract(tensor, max_keypoints=300, resize=512)
    for features in (from_text, from_array, from_tensor):
        np.testing.assert_array_equal(features.descriptors, from_path.descriptors)
    assert isinstance(from_path, linglue.Features) and len(from_path) == 300
    assert from_path.kind == "linpoint" and from_path.image_size == (600, 400)
    assert from_path.keypoints.shape == (300, 2) and from_path.descriptors.shape == (300, 64)
    assert from_path.scores.shape == (300,) and from_path.scales is None and from_path.oris is None


def test_match_takes_paths_images_and_features(matcher, images, pair):
    features = [matcher.extract(path, 400) for path in images]
    expected = matcher.match(*features)
    for two in (images, [str(p) for p in images], (pair.image0, pair.image1), (features[0], images[1])):
        result = matcher.match(*two, max_keypoints=400)
        np.testing.assert_array_equal(result.indices, expected.indices)
        np.testing.assert_array_equal(result.scores, expected.scores)


def test_result_fields(matcher, pair):
    result = matcher.match(pair.image0, pair.image1, 800)
    count = len(result)
    assert isinstance(result, linglue.Matches) and count > 200
    assert result.points0.shape == result.points1.shape == result.indices.shape == (count, 2)
    assert result.scores.shape == (count,)
    assert result.scores.min() >= 0 and result.scores.max() <= 1
    assert (np.diff(result.scores) <= 0).all()
    for side in (0, 1):
        assert len(set(result.indices[:, side])) == count  # one-to-one
    assert 0.9 < result.pair_score <= 1
    assert {"extract", "first pass"} <= result.timing.keys()
    assert all(seconds >= 0 for seconds in result.timing.values())
    assert (pair.errors(result.points0, result.points1) < 3).mean() > 0.95


def test_results_print_as_one_line(matcher, pair):
    result = matcher.match(pair.image0, pair.image1, 300)
    assert repr(result.features0) == "Features(300 linpoint keypoints of 64 numbers, image 600x400)"
    score = f"pair score {result.pair_score:.2f}"
    assert repr(result) == f"Matches({len(result)} matches between 300 and 300 linpoint keypoints, {score})"


def test_matching_is_an_argument(matcher, pair):
    features = [matcher.extract(image, 500) for image in (pair.image0, pair.image1)]
    result = matcher.match(*features)
    for least in (0.6, 0.9):
        strict = linglue.Matcher.from_pretrained(device="cpu", matching=linglue.MatchingConfig(min_score=least))
        found = strict.match(*features)
        np.testing.assert_array_equal(found.indices, result.indices[result.scores >= least])
        assert strict.settings != matcher.settings and strict.settings["matching"]["min_score"] == least
    paper = linglue.Matcher(None, matcher.network, "linpoint", matching=linglue.MatchingConfig.paper()).match(*features)
    assert 100 < len(paper) < len(result) and paper.scores.min() >= 0.5
    assert set(paper.timing) == {"extract", "network", "matching", "filter"}


def test_draw(matcher, images, pair, tmp_path):
    matcher.match(*images, max_keypoints=300).draw(tmp_path / "paths.png")
    matcher.match(pair.image0, pair.image1, max_keypoints=300).draw(tmp_path / "arrays.png")
    drawn = [cv2.imread(str(tmp_path / name)) for name in ("paths.png", "arrays.png")]
    np.testing.assert_array_equal(*drawn)
    features = matcher.extract(pair.image0, 300)
    with pytest.raises(linglue.LinGlueError, match="Features"):
        matcher.match(features, features).draw(tmp_path / "features.png")
    assert not (tmp_path / "features.png").exists()


@pytest.fixture(scope="module")
def ragged(matcher, pair) -> list[tuple[linglue.Features, linglue.Features]]:
    f0, f1 = matcher.extract(pair.image0, 500), matcher.extract(pair.image1, 400)
    small = matcher.extract(pair.image0[:200, :250], 150)
    none = f0.select(np.arange(0))
    return [(f0, f1), (small, f1), (f1, small), (none, f0), (f0.select(np.arange(1)), f1)]


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_batch_gives_what_its_pairs_give(matcher, ragged, batch_size):
    results = matcher.match_batch(ragged, batch_size)
    assert len(results) == len(ragged)
    for two, result in zip(ragged, results, strict=True):
        alone = matcher.match(*two)
        np.testing.assert_array_equal(result.indices, alone.indices)
        np.testing.assert_allclose(result.scores, alone.scores, atol=0 if batch_size is None else 1e-4)
    assert len(results[0]) > 100 and len(results[3]) == len(results[4]) == 0
    assert results[3].pair_score == 0


def test_an_empty_batch_gives_an_empty_list(matcher):
    assert matcher.match_batch([]) == []


def test_features_from_numpy_and_torch_are_the_same():
    keypoints, descriptors = np.random.default_rng(0).random((5, 2)), np.eye(5, 8)
    one = linglue.Features(keypoints=keypoints, descriptors=descriptors, image_size=(40, 30), kind="mine")
    two = linglue.Features(
        keypoints=torch.from_numpy(keypoints), descriptors=torch.from_numpy(descriptors), image_size=(40, 30)
    )
    np.testing.assert_array_equal(one.keypoints, two.keypoints)
    assert one.scores.tolist() == [1] * 5 and one.scales is None and one.oris is None
    assert (one.kind, two.kind) == ("mine", "unknown")


def test_without_a_front_end_only_features_match(matcher, pair):
    bare = linglue.Matcher(None, matcher.network, "linpoint", first=matcher.first)
    features = [matcher.extract(image, 300) for image in (pair.image0, pair.image1)]
    np.testing.assert_array_equal(bare.match(*features).indices, matcher.match(*features).indices)
    with pytest.raises(linglue.LinGlueError, match="front-end"):
        bare.match(pair.image0, pair.image1)


@pytest.mark.parametrize("preset", ["pair", "linear", "linear-sinkhorn", "geo"])
def test_network_speaks_lightglues_dictionaries(preset):
    """Keys, shapes and types; scales and oris are optional, padding is marked by mask."""
    config = linglue.LinGlueConfig.preset(preset, input_dim=32)
    network = linglue.LinGlue(config).eval()
    generator = torch.Generator().manual_seed(0)
    data = {}
    for name, count in (("image0", 30), ("image1", 40)):
        data[name] = {
            "keypoints": 100 * torch.rand(2, count, 2, generator=generator),
            "descriptors": torch.nn.functional.normalize(torch.randn(2, count, 32, generator=generator), dim=-1),
            "image_size": torch.tensor([[100.0, 100.0], [100.0, 100.0]]),
            "mask": torch.arange(count).expand(2, -1) < torch.tensor([[count], [count - 10]]),
        }
    with torch.inference_mode():
        out = network(data)
    assert out["descriptors0"].shape == out["coarse0"].shape == (2, 30, config.dim)
    assert out["descriptors1"].shape == out["coarse1"].shape == (2, 40, config.dim)
    for side, count in ((0, 30), (1, 40)):
        assert out[f"matches{side}"].shape == out[f"matching_scores{side}"].shape == (2, count)
        assert out[f"matches{side}"].dtype == torch.int64
        assert (out[f"matches{side}"][1, count - 10 :] == -1).all()
    assert len(out["matches"]) == len(out["scores"]) == 2
    for pairs, scores in zip(out["matches"], out["scores"], strict=True):
        assert pairs.shape == (len(scores), 2) and pairs.dtype == torch.int64


def test_image_size_may_be_missing_as_with_lightglue(matcher, pair):
    features = [matcher.extract(image, 500) for image in (pair.image0, pair.image1)]
    network = linglue.LinGlue.from_pretrained()
    data = {f"image{side}": entry.tensors() for side, entry in enumerate(features)}
    with torch.inference_mode():
        known = network(data)
        for entry in data.values():
            del entry["image_size"]
        found = network(data)
    same = {tuple(p) for p in found["matches"][0].tolist()} & {tuple(p) for p in known["matches"][0].tolist()}
    assert len(same) > 0.9 * len(known["matches"][0]) > 200
    bare = linglue.Matcher(None, network, "linpoint")
    np.testing.assert_array_equal(known["matches"][0].numpy(), bare.match(*features).indices)


def test_wrong_descriptor_size_names_the_right_one():
    network = linglue.LinGlue(linglue.LinGlueConfig.preset("pair", input_dim=256))
    entry = {"keypoints": torch.zeros(1, 3, 2), "descriptors": torch.zeros(1, 3, 128), "image_size": torch.ones(1, 2)}
    with pytest.raises(linglue.LinGlueError, match=r"image0.*\(1, 3, 128\).*256"):
        network({"image0": entry, "image1": entry})
