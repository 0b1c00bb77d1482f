"""Where cameras and lines stand, and how many of them."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue.viewer import draw
from linglue.viewer.draw import draw_cameras, graph_edges, overview
from linglue.viz.scene import Scene


def ring(count: int, turn: float = 0.0) -> Scene:
    """Cameras on a circle of radius 5 around points about the origin, which they look at."""
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    centres = 5 * np.column_stack([np.sin(angles), np.zeros(count), -np.cos(angles)])
    rotations = Rotation.from_euler("y", angles[:, None] + turn).as_matrix()  # camera from world
    points = np.random.default_rng(0).normal(size=(200, 3))
    scene = Scene.empty()
    scene.__dict__.update(
        points=points,
        names=tuple(f"{number:05}" for number in range(count)),
        centres=centres,
        rotations=rotations,
        reach=np.tile([[0.5, 0.4]], (count, 1)),
    )
    return scene


def wall(count: int) -> Scene:
    """Cameras in a row, all looking along z."""
    scene = ring(count)
    centres = np.column_stack([np.arange(count), np.zeros(count), np.full(count, -8.0)])
    scene.__dict__.update(centres=centres, rotations=np.tile(np.eye(3), (count, 1, 1)))
    return scene


class Recorder:
    """A server that remembers what was added."""

    def __init__(self):
        self.frusta, self.lines, self.scene = [], [], self

    def add_camera_frustum(self, name, **options):
        self.frusta.append(name)
        return self

    def add_line_segments(self, name, lines, colour):
        self.lines.append(lines)
        return self

    def on_click(self, _):
        pass


def test_many_cameras_are_lines(monkeypatch):
    monkeypatch.setattr(draw, "MAX_FRUSTA", 10)
    monkeypatch.setattr(draw, "MAX_IMAGES", 1)  # the first, which is among the ten
    server = Recorder()
    handles = draw_cameras(server, ring(35), {}, print)
    assert len(server.frusta) == 10 and len(handles) == 11
    assert server.lines[0].shape == (25 * 8, 2, 3)


def test_few_cameras_can_all_be_clicked():
    server = Recorder()
    draw_cameras(server, ring(8), {}, print)
    assert server.frusta == [f"/cameras/{number}" for number in range(8)] and not server.lines


def test_lines_are_those_of_pairs_with_matches_the_strongest_first(monkeypatch):
    scene = ring(4)
    a, b, c = scene.names[:3]
    matched = {(a, b): 10, (a, c): 0, (b, c): 20, (a, "without a pose"): 90}
    assert np.array_equal(graph_edges(scene, matched), scene.centres[[[1, 2], [0, 1]]])
    monkeypatch.setattr(draw, "MAX_EDGES", 1)
    assert np.array_equal(graph_edges(scene, matched), scene.centres[[[1, 2]]])
    assert graph_edges(scene, {}).shape == (0, 2, 3)


@pytest.mark.parametrize("scene", [ring(12), wall(12)], ids=["around an object", "along a wall"])
def test_all_cameras_are_seen_from_afar(scene):
    position, target = overview(scene)
    forward = (target - position) / np.linalg.norm(target - position)
    away = scene.centres - position
    cosine = away @ forward / np.linalg.norm(away, axis=1)
    assert np.degrees(np.arccos(cosine)).max() < 37.5  # half of viser's field of view
    assert (position - scene.middle) @ scene.up > 0  # from above


def test_a_wall_is_seen_from_behind_the_cameras():
    position, _ = overview(wall(12))
    assert position[2] < -8
