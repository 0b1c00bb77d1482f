from itertools import pairwise

import cv2
import numpy as np
import pytest

from linglue.viz.model import draw_match_graph, draw_model

pycolmap = pytest.importorskip("pycolmap")
pytest.importorskip("matplotlib")


def make_model(images, points=300):
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=images, num_points3D=points)
    model = pycolmap.synthesize_dataset(options)
    for point in model.points3D.values():
        point.color = np.array([20, 240, 20], dtype=np.uint8)
    return model


def read(path):
    image = cv2.imread(str(path))
    assert image is not None
    return image[..., ::-1].astype(int)


@pytest.mark.parametrize("images", [2, 12])
def test_points_and_cameras_are_drawn(tmp_path, images):
    draw_model(tmp_path / "model.png", make_model(images))
    picture = read(tmp_path / "model.png")
    assert picture.shape[1] == 1500 and 500 < picture.shape[0] < 2500
    green = (picture[..., 1] > 180) & (picture[..., 0] < 120)
    red = (picture[..., 0] > 150) & (picture[..., 1] < 150)
    assert green.sum() > 500 and red.sum() > 100  # points, and cameras in shades from purple to yellow
    assert [path.name for path in tmp_path.iterdir()] == ["model.png"]


def test_an_outlier_does_not_shrink_the_scene(tmp_path):
    model = make_model(6)
    draw_model(tmp_path / "a.png", model)
    model.point3D(next(iter(model.points3D))).xyz = np.array([1e6, -1e6, 1e6])
    draw_model(tmp_path / "b.png", model)
    assert abs(read(tmp_path / "a.png").shape[0] - read(tmp_path / "b.png").shape[0]) < 60


def test_a_model_without_points(tmp_path):
    model = make_model(3)
    for number in list(model.points3D):
        model.delete_point3D(number)
    draw_model(tmp_path / "empty.png", model)
    assert read(tmp_path / "empty.png").std() > 0


@pytest.mark.parametrize("count", [1, 10, 2500])
def test_match_graph_of_any_size(tmp_path, count):
    names = [f"folder one/ä {number}.jpg" for number in range(count)]
    verified = {(a, b): 40 + k for k, (a, b) in enumerate(pairwise(names))}
    draw_match_graph(tmp_path / "graph.png", names, verified, names[:-1])
    picture = read(tmp_path / "graph.png")
    assert picture.shape[1] == 1500
    if count > 1:  # some cells have a colour
        assert ((picture.max(axis=2) - picture.min(axis=2)) > 60).sum() > 500


def test_names_are_no_formulas(tmp_path):
    names = ["$\\frac$.png", "$a_$b$.png", "\\$.png"]
    draw_match_graph(tmp_path / "graph.png", names, {(names[0], names[1]): 50}, names)
    assert read(tmp_path / "graph.png").shape[1] == 1500
