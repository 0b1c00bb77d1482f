"""Front-ends by name, from inside and outside the package, and what is known of them before any is loaded."""

import subprocess
import sys

import pytest

import linglue
from linglue.errors import LinGlueError
from linglue.features import DEFAULT_FEATURES, EXTRACTORS, FRONT_ENDS, front_end, make_extractor
from linglue.features.base import Extractor

NO_CLASS = 3


class Corners(Extractor):
    """All that a plug-in needs."""

    kind = "corners"
    dim = 4
    licence = "MIT"

    def detect(self, image, max_keypoints, mask):
        return self._empty(linglue.ImageSize(image.shape[1], image.shape[0]))


class Unfinished(Extractor):
    kind = "unfinished"


def test_facts_cover_what_can_be_made():
    assert list(FRONT_ENDS) == EXTRACTORS.names() == ["linpoint", "sift", "superpoint", "aliked", "disk"]
    assert DEFAULT_FEATURES in FRONT_ENDS
    for name, facts in FRONT_ENDS.items():
        assert name == facts.name and facts.licence and facts.dim
        assert facts.needs_weights == bool(facts.weights_source) == (facts.download is not None)
        loaded = EXTRACTORS.get(name)
        assert (loaded.kind, loaded.dim, loaded.licence) == (name, facts.dim, facts.licence)


def test_facts_are_read_without_torch_and_without_loading_a_front_end():
    code = "import sys; from linglue.features import front_end; "
    code += "print(front_end('aliked').dim, *(m for m in ('torch', 'cv2', 'kornia') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["128"]


def test_learned_front_ends_are_imported_only_on_demand():
    modules = ("kornia", "linglue.features.superpoint", "linglue.features.aliked", "linglue.features.linpoint")
    code = "import sys; from linglue.features import make_extractor; make_extractor('sift'); "
    code += f"print(*(m in sys.modules for m in {modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * len(modules)


def test_a_class_of_another_package_is_a_front_end():
    name = f"{__name__}:Corners"
    extractor = make_extractor(name)
    assert isinstance(extractor, Corners)
    assert (front_end(name).name, front_end(name).dim, front_end(name).licence) == ("corners", 4, "MIT")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("surf", "'surf', expected linpoint, sift, superpoint, aliked, disk, or package:Name"),
        ("no_such_package:Name", "no_such_package:Name.*cannot be loaded"),
        (f"{__name__}:Absent", "Absent.*cannot be loaded"),
        (f"{__name__}:NO_CLASS", "NO_CLASS' is of type int, expected a class or function"),
        (f"{__name__}:Unfinished", "Unfinished lacks dim, licence, detect, expected kind, dim, licence and detect"),
    ],
)
def test_what_is_no_front_end_is_refused_in_one_line(name, says):
    with pytest.raises(LinGlueError, match=says) as caught:
        make_extractor(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sift", f"{__name__}:Corners"])
def test_weights_for_a_front_end_without_any_are_refused(name):
    with pytest.raises(LinGlueError, match=r"got the weights file x\.pth, expected none"):
        make_extractor(name, "x.pth")


@pytest.mark.parametrize("name", ["superpoint", "aliked", "disk"])
def test_missing_weights_are_named_with_the_ways_to_get_them(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(LinGlueError) as caught:
        make_extractor(name)
    download = FRONT_ENDS[name].download
    assert f"linglue models --fetch {name}" in str(caught.value)
    assert str(tmp_path / "hub" / "checkpoints" / download.file) in str(caught.value)
    assert FRONT_ENDS[name].weights_source in str(caught.value)
