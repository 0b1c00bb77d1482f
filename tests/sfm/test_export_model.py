"""Models for other programs."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue import LinGlueError
from linglue.sfm.export_model import export_text, export_undistorted
from linglue.sfm.sparse_model import read_model, registered_names, write_model

pycolmap = pytest.importorskip("pycolmap")


@pytest.fixture
def model(tmp_path) -> Path:
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
        image = np.asarray(cv2.imread(str(tmp_path / "out" / "images" / name)))
        upright = flat.find_image_with_name(name).camera
        assert image.shape[:2] == (upright.height, upright.width)
        assert image[: upright.height // 3].mean() < 20 < image[-upright.height // 3 :].mean()


def test_missing_images_are_named(model, tmp_path):
    with pytest.raises(LinGlueError, match="3 of its images are not found"):
        export_undistorted(model, {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_transforms_for_nerfstudio(model, tmp_path):
    images = {}
    for image in read_model(model).images.values():
        images[image.name] = tmp_path / "images" / image.name
        images[image.name].parent.mkdir(exist_ok=True)
        camera = image.camera
        cv2.imwrite(str(images[image.name]), np.full((camera.height, camera.width, 3), 99, np.uint8))
    export_undistorted(model, images, tmp_path / "out")
    transforms = json.loads((tmp_path / "out" / "transforms.json").read_text())
    assert (tmp_path / "out" / transforms["ply_file_path"]).is_file()
    assert len(transforms["frames"]) == 3
    flat = read_model(tmp_path / "out" / "sparse" / "0")
    for frame in transforms["frames"]:
        stored = cv2.imread(str(tmp_path / "out" / frame["file_path"]))
        assert stored.shape[:2] == (frame["h"], frame["w"])
        image = flat.find_image_with_name(frame["file_path"].removeprefix("images/"))
        point = next(iter(flat.points3D.values())).xyz
        seen = np.linalg.inv(frame["transform_matrix"]) @ [*point, 1]  # x right, y up, z back
        pixel = [frame["cx"] - frame["fl_x"] * seen[0] / seen[2], frame["cy"] + frame["fl_y"] * seen[1] / seen[2]]
        assert np.allclose(pixel, image.project_point(point), atol=1e-6)
