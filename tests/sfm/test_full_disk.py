"""Where no more can be written: COLMAP does not notice, so what it wrote is checked before it counts."""

import resource
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from linglue import LinGlueError
from linglue.sfm.export_model import export_ply, export_text, export_undistorted
from linglue.sfm.sparse_model import read_model, registered_names, write_model

pycolmap = pytest.importorskip("pycolmap")


@contextmanager
def largest_file(size):
    """No file can become larger than `size` bytes in the block: writing ends as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def synthesize(points):
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=3, num_points3D=points)
    return pycolmap.synthesize_dataset(options)


@pytest.fixture
def model(tmp_path):
    """Three cameras around fifty points, and an image of each."""
    made = synthesize(50)
    write_model(made, tmp_path / "model")
    noise = np.random.default_rng(0)
    for name in registered_names(made):
        camera = made.find_image_with_name(name).camera
        (tmp_path / "images").mkdir(exist_ok=True)
        pixels = noise.integers(0, 255, (camera.height, camera.width, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    return tmp_path / "model"


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_old_model_stays_where_the_new_one_cannot_be_written(model, tmp_path):
    before = content(tmp_path)
    larger = synthesize(5000)
    with largest_file(20_000), pytest.raises(LinGlueError, match=r"model: the model cannot be written .*full"):
        write_model(larger, model)
    assert content(tmp_path) == before
    write_model(larger, model)
    assert read_model(model).num_points3D() == larger.num_points3D()


@pytest.mark.parametrize("size", [200, 500, 2000])
def test_half_a_new_model_is_none(tmp_path, size):
    with largest_file(size), pytest.raises(LinGlueError, match="cannot be written"):
        write_model(synthesize(50), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_half_an_export_is_none(model, tmp_path):
    images = {name: tmp_path / "images" / name for name in registered_names(read_model(model))}
    before = content(tmp_path)
    with largest_file(1000):
        for export in (
            lambda: export_ply(model, tmp_path / "points.ply"),
            lambda: export_text(model, tmp_path / "text"),
            lambda: export_undistorted(model, images, tmp_path / "flat"),
        ):
            with pytest.raises(LinGlueError, match="cannot be written"):
                export()
    with largest_file(100_000), pytest.raises(LinGlueError, match=r"flat: cannot be written .*full"):
        export_undistorted(model, images, tmp_path / "flat")  # the model has space, its images have not
    assert content(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"model", "images"}
