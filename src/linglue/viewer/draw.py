"""What stands in the space of the page: cameras with their images, matches between them; and where to look from.

Large collections are thinned for display: a browser bears some hundred images and some thousand cameras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from linglue.errors import LinGlueError
from linglue.geometry.pose import Pose
from linglue.io.images import Image
from linglue.io.pair_list import Pair
from linglue.viewer.contents import thumbnail
from linglue.viz.scene import Scene, Vectors

CAMERA, QUERY, EDGE = (255, 179, 0), (0, 200, 255), (0, 150, 136)
FRUSTUM, FEW = 0.03, 100  # depth of a camera, relative to the scene, as long as there are few
SIDE = 320  # pixels of an image in its frustum
MAX_IMAGES = 300  # frusta with an image
MAX_FRUSTA = 1000  # cameras that can be clicked; the others are lines, and in the list
MAX_EDGES = 20_000  # of the match graph; the strongest are drawn
_EDGES = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]])  # of `Scene.frusta`
HALF_VIEW = 33.0  # degrees that are filled to each side, of viser's 37.5


def draw_cameras(
    server: Any, scene: Scene, paths: Mapping[str, Path], clicked: Callable[[str], None]
) -> list[Any]:  # handles to remove them by
    """Draw the cameras of a scene.

    Args:
        server: of viser.
        scene: with the cameras.
        paths: of the images that are there.
        clicked: is told the name of the image whose camera was clicked.
    """
    with_image, with_frustum = (_spread(len(scene.names), most) for most in (MAX_IMAGES, MAX_FRUSTA))
    handles = []
    for number in sorted(with_image | with_frustum):
        path = paths.get(scene.names[number]) if number in with_image else None
        handles.append(_frustum(server, scene, number, path, clicked))
    rest = sorted(set(range(len(scene.names))) - with_image - with_frustum)
    if rest:
        lines = scene.frusta(_depth(scene))[rest][:, _EDGES]  # (R, 8, 2, 3)
        handles.append(server.scene.add_line_segments("/other cameras", lines.reshape(-1, 2, 3), CAMERA))
    return handles


def _depth(scene: Scene) -> float:
    """Of the cameras, smaller where many would hide each other."""
    return FRUSTUM * scene.extent * min(1.0, (FEW / max(len(scene.names), 1)) ** 0.5)


def _spread(count: int, most: int) -> set[int]:
    """At most so many numbers below `count`, evenly spread."""
    return set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist())


def _frustum(server: Any, scene: Scene, number: int, path: Path | None, clicked: Callable[[str], None]) -> Any:
    width, height = scene.reach[number]
    handle = server.scene.add_camera_frustum(
        f"/cameras/{number}",
        fov=2 * float(np.arctan(height)),
        aspect=float(width / height),
        scale=_depth(scene),
        color=CAMERA,
        image=None if path is None else _small(path),
        wxyz=_wxyz(scene.rotations[number].T),
        position=scene.centres[number],
    )
    handle.on_click(lambda _: clicked(scene.names[number]))
    return handle


def _small(path: Path) -> Image | None:
    """The image for a frustum; None if it has been damaged or removed since."""
    try:
        return _remembered(path, path.stat().st_mtime_ns)
    except (LinGlueError, OSError):
        return None


@lru_cache(maxsize=MAX_IMAGES)
def _remembered(path: Path, changed: int) -> Image:
    return thumbnail(path, SIDE)


def draw_queries(server: Any, queries: Mapping[str, Pose], scene: Scene) -> list[Any]:
    """Draw the cameras of localized images in their own colour.

    Args:
        server: of viser.
        queries: poses by name.
        scene: among whose cameras they stand.
    """
    return [
        server.scene.add_camera_frustum(
            f"/queries/{number}",
            fov=0.9,
            aspect=1.33,
            scale=_depth(scene),
            color=QUERY,
            wxyz=_wxyz(pose.rotation.T),
            position=pose.centre,
        )
        for number, pose in enumerate(queries.values())
    ]


def graph_edges(scene: Scene, matched: Mapping[Pair, int]) -> Vectors:
    """(E, 2, 3) lines between the cameras of pairs with matches, those with the most first.

    Args:
        scene: with the cameras.
        matched: number of matches by pair.
    """
    place = dict(zip(scene.names, scene.centres, strict=True))
    pairs = [pair for pair, count in matched.items() if count and place.keys() >= set(pair)]
    pairs = sorted(pairs, key=lambda pair: (-matched[pair], pair))[:MAX_EDGES]
    return np.array([[place[a], place[b]] for a, b in pairs]).reshape(-1, 2, 3)


def look_through(camera: Any, scene: Scene, number: int) -> None:
    """Look from a little behind the camera of an image.

    Args:
        camera: of a visitor.
        scene: with the cameras.
        number: of the image in the scene.
    """
    forward, start = scene.rotations[number, 2], scene.centres[number]
    camera.up_direction = -scene.rotations[number, 1]
    camera.position = start - 0.05 * scene.extent * forward
    camera.look_at = start + 0.3 * scene.extent * forward


def overview(scene: Scene) -> tuple[Vectors, Vectors]:
    """Positions (3,) to look from and to look at so that all cameras and most points are seen.

    Args:
        scene: with at least one camera.
    """
    middle, away = scene.middle, scene.lookout
    low, high = scene.box
    usual = scene.points[((scene.points >= low) & (scene.points <= high)).all(axis=1)]
    seen = np.concatenate([scene.centres, usual]) - middle  # (S, 3)
    towards = seen @ away
    aside = np.linalg.norm(seen - towards[:, None] * away, axis=1)
    distance = float((aside / np.tan(np.deg2rad(HALF_VIEW)) + towards).max())
    return middle + max(distance, 1e-9) * away, middle


def _wxyz(rotation: Vectors) -> NDArray[np.float64]:
    """The quaternion of a rotation as viser orders it."""
    return np.roll(Rotation.from_matrix(np.array(rotation)).as_quat(), 1)
