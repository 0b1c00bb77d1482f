from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from linglue import LinGlueError
from linglue.io.images import read_image
from linglue.sfm.sparse_model import (
    ModelStatistics,
    aligned_errors,
    colour_points,
    read_model,
    registered_names,
    write_model,
)

pycolmap = pytest.importorskip("pycolmap")

ORIENTATION = 0x0112


@pytest.fixture
def model() -> Any:
    """Six cameras around fifty points, all seen by all."""
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=6, num_points3D=50)
    options.num_points2D_without_point3D = 0
    return pycolmap.synthesize_dataset(options)


def poses(model):
    return {model.image(k).name: model.image(k).cam_from_world().matrix() for k in model.reg_image_ids()}


def test_statistics(model):
    numbers = ModelStatistics.of(model, images=8)
    assert (numbers.images, numbers.registered, numbers.points, numbers.observations) == (8, 6, 50, 300)
    assert numbers.track_length == 6 and numbers.observations_per_image == 50
    assert numbers.reprojection_error < 1e-6


def test_a_moved_turned_and_scaled_model_has_no_error(model):
    truth = poses(model)
    turn = pycolmap.Rotation3d(np.array([0.3, -0.5, 1.2]))
    model.transform(pycolmap.Sim3d(2.5, turn, np.array([4.0, 5.0, -6.0])))
    positions, angles = aligned_errors(model, truth)
    assert list(positions) == registered_names(model) == sorted(truth)
    assert max(positions.values()) < 1e-9 and max(angles.values()) < 1e-4


def test_errors_are_in_the_unit_of_the_truth_and_in_degrees(model):
    truth = poses(model)
    model.transform(pycolmap.Sim3d(10.0, pycolmap.Rotation3d(), np.zeros(3)))
    name = registered_names(model)[0]
    one_degree = pycolmap.Rotation3d(np.deg2rad([0.0, 1.0, 0.0])).matrix()
    truth[name] = one_degree @ truth[name]  # turns the camera where it stands
    positions, angles = aligned_errors(model, truth)
    assert angles[name] == pytest.approx(1.0, abs=1e-4) and positions[name] < 1e-9
    other = registered_names(model)[1]
    truth[other] = truth[other] + np.array([[0, 0, 0, 0.01]] * 3)
    positions, _ = aligned_errors(model, truth)
    assert 0.002 < positions[other] < 0.02


def test_too_few_true_poses(model):
    truth = dict(list(poses(model).items())[:2])
    with pytest.raises(LinGlueError, match="2 registered images have a true pose, expected at least 3"):
        aligned_errors(model, truth)


def test_a_model_replaces_the_one_before_and_nothing_else(model, tmp_path):
    folder = tmp_path / "my model"
    write_model(model, folder)
    (folder / "mine.txt").write_text("a note of the user's")
    (folder / "points3D.bin").write_bytes(b"old")
    write_model(model, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["my model"]
    assert (folder / "mine.txt").read_text() == "a note of the user's"
    assert registered_names(read_model(folder)) == registered_names(model)


def test_no_folder_to_write_to(model, tmp_path):
    with pytest.raises(LinGlueError, match="cannot be written") as error:
        write_model(model, tmp_path / "nowhere" / "model")
    assert "\n" not in str(error.value)


def test_no_model_to_read(tmp_path):
    with pytest.raises(LinGlueError, match="no such folder"):
        read_model(tmp_path / "nothing")
    with pytest.raises(LinGlueError, match="holds no COLMAP model") as error:
        read_model(tmp_path)
    assert "\n" not in str(error.value)


def test_colours_are_of_the_upright_image(tmp_path):
    """A image whose file lies on its side: red above and blue below only when it is upright."""
    upright = np.zeros((80, 60, 3), dtype=np.uint8)
    upright[:40], upright[40:] = (250, 10, 10), (10, 10, 250)
    stored = Image.fromarray(cv2.rotate(upright, cv2.ROTATE_90_COUNTERCLOCKWISE))
    exif = stored.getexif()
    exif[ORIENTATION] = 6
    stored.save(tmp_path / "a b.jpg", exif=exif, quality=95)
    assert read_image(tmp_path / "a b.jpg").shape == (80, 60, 3)

    model = pycolmap.Reconstruction()
    camera = pycolmap.Camera(model="SIMPLE_PINHOLE", width=60, height=80, params=[70, 30, 40], camera_id=1)
    model.add_camera_with_trivial_rig(camera)
    places = np.array([[30.2, 10.7], [30.2, 70.3], [59.99, 79.99]])
    image = pycolmap.Image("a b.jpg", places, camera_id=1, image_id=1)
    model.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
    ids = []
    for index, (x, y) in enumerate(places):
        track = pycolmap.Track([pycolmap.TrackElement(1, index)])
        ids.append(model.add_point3D(np.array([(x - 30) / 70, (y - 40) / 70, 1.0]), track))
    colour_points(model, {"a b.jpg": tmp_path / "a b.jpg"})
    red, blue, corner = (model.point3D(k).color.astype(int) for k in ids)
    assert np.abs(red - [250, 10, 10]).max() < 12
    assert np.abs(blue - [10, 10, 250]).max() < 12 and np.abs(corner - [10, 10, 250]).max() < 12
