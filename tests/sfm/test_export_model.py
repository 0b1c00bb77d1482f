"""Models for other programs."""

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue import LinGlueError
from linglue.sfm.export_model import export_text, export_undistorted
from linglue.sfm.sparse_model import read_model, registered_names, write_model

pycolmap = pytest.importorskip("pycolmap")


@pytest.fixture
def model(tmp_path):
    """Three distorted cameras around fifty points."""
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=3, num_points3D=50)
    made = pycolmap.synthesize_dataset(options)
    write_model(made, tmp_path / "model")
    return tmp_path / "model"


def test_text(model, tmp_path):
    export_text(model, tmp_path / "text")
    assert {path.suffix for path in (tmp_path / "text").iterdir()} == {".txt"}
    assert registered_names(read_model(tmp_path / "text")) == registered_names(read_model(model))
    with pytest.raises(LinGlueError, match="exists already, expected a new folder"):
        export_text(model, tmp_path / "text")


def test_rotated_images_are_undistorted_upright(model, tmp_path):
    camera = next(iter(read_model(model).cameras.values()))
    pixels = np.random.default_rng(0).integers(0, 255, (camera.height, camera.width, 3), np.uint8)
    pixels[: camera.height // 2] = 0  # dark above
    images = {}
    for number, name in enumerate(registered_names(read_model(model))):
        images[name] = tmp_path / "images" / name.replace(".png", ".jpg")
        images[name].parent.mkdir(parents=True, exist_ok=True)
        stored, exif = Image.fromarray(pixels), Image.Exif()
        if number == 0:
            stored, exif[274] = stored.transpose(Image.Transpose.ROTATE_90), 6
        stored.save(images[name], exif=exif, quality=95)
    assert export_undistorted(model, images, tmp_path / "out") == 3
    flat = pycolmap.Reconstruction(tmp_path / "out" / "sparse" / "0")
    for name in images:
        image = cv2.imread(str(tmp_path / "out" / "images" / name))
        upright = flat.find_image_with_name(name).camera
        assert image.shape[:2] == (upright.height, upright.width)
        assert image[: upright.height // 3].mean() < 20 < image[-upright.height // 3 :].mean()


def test_missing_images_are_named(model, tmp_path):
    with pytest.raises(LinGlueError, match="3 of its images are not found"):
        export_undistorted(model, {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
