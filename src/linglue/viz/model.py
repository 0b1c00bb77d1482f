"""Pictures of a reconstruction: its points and cameras from above and from the front, and which images match.

Needs matplotlib, which is imported only here and only when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.core.atomic import atomic_path
from linglue.core.optional import need

if TYPE_CHECKING:
    import pycolmap

Vectors = NDArray[np.float64]

_DPI = 150
_WIDTH = 10.0  # inches
_NIGHT, _FAINT, _TEXT = "#14161a", "#8a93a3", "#e8eaee"  # behind a point cloud, thin lines, letters
_ALARM = "#c62828"
_OUTLIERS = 2.0  # percent of the points on each side that may lie outside the picture
_LONGEST_STEP = 6.0  # times the usual distance to the nearest camera
_MARGIN = 0.06  # of the picture, around what it shows
_TALLEST = 0.75  # height of a panel over its width

MAX_NAMES = 40  # images up to which a graph names each
MAX_NUMBERS = 16  # images up to which it tells the matches of each pair
MAX_CELLS = 1000  # rows and columns of a graph; more images share them


def draw_model(path: Path, model: pycolmap.Reconstruction) -> None:
    """The points in their colours, the cameras as pyramids coloured in the order of names, and the way between them.

    Above the plan, seen from the sky with the mean line of sight upwards; below it the elevation. Across, both are the
    same, so that things lie under each other.

    Args:
        path: .png.
        model: at least one image has a pose.
    """
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
    rotations = np.array([image.cam_from_world().rotation.matrix() for image in images])  # (C, 3, 3)
    view_from_world = _view_axes(rotations)
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3) @ view_from_world.T
    colours = np.array([point.color for point in model.points3D.values()]).reshape(-1, 3) / 255
    centres = np.array([image.projection_center() for image in images]) @ view_from_world.T
    axes = rotations @ view_from_world.T  # rows: right, down and forward of each camera
    cameras = [model.camera(image.camera_id) for image in images]
    reach = np.array([(c.width, c.height) for c in cameras]) / [[2 * c.mean_focal_length()] for c in cameras]
    low, high = _limits(points, centres)
    pyramids = _pyramids(centres, axes, reach, _pyramid_size(centres, high - low))

    across = high[0] - low[0]
    heights = [_WIDTH * (high[k] - low[k]) / across for k in (2, 1)]
    figure = need("matplotlib.figure", "a picture").Figure(
        figsize=(_WIDTH, sum(heights) + 0.7), layout="constrained", facecolor=_NIGHT
    )
    plan, elevation = figure.subplots(2, 1, height_ratios=heights)
    # x right, y down, z forward: the plan shows x and z, seen along y, and the elevation x and -y, seen along z.
    for axis, up, sign, along, title in ((plan, 2, 1, 1, "from above"), (elevation, 1, -1, 2, "from the front")):
        order = np.argsort(-points[:, along])  # the nearest are drawn last
        _scatter(axis, points[order][:, [0, up]] * [1, sign], colours[order])
        _draw_cameras(axis, pyramids[..., [0, up]] * [1, sign])
        bounds = sorted((sign * low[up], sign * high[up]))
        axis.set(xlim=(low[0], high[0]), ylim=bounds, aspect="equal")
        axis.set_axis_off()
        axis.text(0.01, 0.985, title, transform=axis.transAxes, color=_FAINT, va="top", fontsize=10)
    figure.suptitle(f"{len(images):,} images, {len(points):,} points", color=_TEXT, fontsize=13)
    _save(figure, path)


def _view_axes(rotations: Vectors) -> Vectors:
    """(3, 3) view from world: right, down and forward as people would hold a map, from what the cameras agree on."""
    down = _direction(rotations[:, 1].mean(axis=0), rotations[0, 1])
    forward = rotations[:, 2].mean(axis=0)
    level = _direction(forward - (forward @ down) * down, _any_normal(down))
    return np.stack([np.cross(down, level), down, level])


def _direction(vector: Vectors, otherwise: Vectors) -> Vectors:
    """The vector at unit length; cameras that look everywhere cancel out, and then any direction will do."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 1e-3 else otherwise


def _any_normal(vector: Vectors) -> Vectors:
    normal = np.cross(vector, np.eye(3)[np.argmin(np.abs(vector))])
    return np.asarray(normal / np.linalg.norm(normal))


def _limits(points: Vectors, centres: Vectors) -> tuple[Vectors, Vectors]:
    """(3,) lowest and highest coordinate to show: nearly all points and all cameras, in panels of a fair shape."""
    spans = [centres] if not len(points) else [centres, np.percentile(points, [_OUTLIERS, 100 - _OUTLIERS], axis=0)]
    low, high = np.concatenate(spans).min(axis=0), np.concatenate(spans).max(axis=0)
    middle, extent = (low + high) / 2, np.maximum(high - low, 1e-9)
    extent = np.maximum(extent * (1 + 2 * _MARGIN), 0.25 * extent.max())
    extent[0] = max(extent[0], extent[1] / _TALLEST, extent[2] / _TALLEST)
    return middle - extent / 2, middle + extent / 2


def _pyramid_size(centres: Vectors, extent: Vectors) -> float:
    """Length of a camera's pyramid: about half way to the next camera, neither a speck nor half the picture."""
    steps = np.linalg.norm(np.diff(centres, axis=0), axis=1)
    usual = 0.5 * float(np.median(steps)) if len(steps) else np.inf
    return float(np.clip(usual, 0.012 * extent[0], 0.035 * extent[0]))


def _pyramids(centres: Vectors, axes: Vectors, reach: Vectors, size: float) -> Vectors:
    """(C, 5, 3) apex and corners of the fields of view; `reach` (C, 2): half their width and height at depth 1."""
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    rays = np.concatenate([signs * reach[:, None], np.ones((len(reach), 4, 1))], axis=2)  # (C, 4, 3) in the camera
    corners = centres[:, None] + size * rays @ axes
    return np.concatenate([centres[:, None], corners], axis=1)


def _scatter(axis: Any, flat: Vectors, colours: Vectors) -> None:
    size = float(np.clip(60_000 / max(len(flat), 1), 0.6, 6.0))
    # A little lighter than life: dark points would vanish in the night.
    axis.scatter(*flat.T, s=size, c=0.15 + 0.85 * colours, linewidths=0)


def _draw_cameras(axis: Any, pyramids: Vectors) -> None:
    collections = need("matplotlib.collections", "a picture")
    shades = need("matplotlib", "a picture").colormaps["plasma"](np.linspace(0.35, 0.95, len(pyramids)))
    outline = [0, 1, 2, 0, 3, 4, 0, 2, 3, 0, 4, 1]  # one stroke over all edges
    axis.plot(*_way(pyramids[:, 0]).T, color=_FAINT, linewidth=0.8, alpha=0.7, zorder=3)
    axis.add_collection(collections.LineCollection(pyramids[:, outline], colors=shades, linewidths=1.0, zorder=4))
    axis.scatter(*pyramids[:, 0].T, s=6, c=shades, linewidths=0, zorder=5)


def _way(centres: Vectors) -> Vectors:
    """The places one after the other, with a gap (NaN) at steps far beyond the next neighbour: nobody walked there."""
    if len(centres) < 2:
        return centres
    nearest = np.median(cKDTree(centres).query(centres, k=2)[0][:, 1])
    steps = np.linalg.norm(np.diff(centres, axis=0), axis=1)
    far = np.flatnonzero(steps > _LONGEST_STEP * nearest) + 1
    return np.insert(centres, far, np.nan, axis=0)


def draw_match_graph(
    path: Path, names: Sequence[str], verified: Mapping[tuple[str, str], int], registered: Collection[str]
) -> None:
    """A table of all images against all: how many matches of each pair were verified.

    Images keep the order of `names`. Those without a pose are red; where many images share a row, the best pair counts.

    Args:
        path: .png.
        names: all images.
        verified: number of verified matches by pair of names.
        registered: names of the images with a pose.
    """
    matplotlib, count = need("matplotlib", "a picture"), len(names)
    share = -(-count // MAX_CELLS)  # images per row
    row = {name: number // share for number, name in enumerate(names)}
    cells = -(-count // share)
    table = np.zeros((cells, cells))
    for (name0, name1), matches in verified.items():
        for a, b in ((row[name0], row[name1]), (row[name1], row[name0])):
            table[a, b] = max(table[a, b], matches)

    figure = need("matplotlib.figure", "a picture").Figure(figsize=(_WIDTH, 0.9 * _WIDTH), layout="constrained")
    axis = figure.subplots()
    palette = matplotlib.colormaps["viridis_r"].with_extremes(bad="#f4f4f4")
    most = max(float(table.max()), 100.0)
    scale = need("matplotlib.colors", "a picture").LogNorm(10, most, clip=True)
    edges = (-0.5, count - 0.5, count - 0.5, -0.5)
    drawn = axis.imshow(
        np.ma.masked_equal(table, 0), cmap=palette, norm=scale, extent=edges, interpolation="nearest", zorder=1
    )
    figure.colorbar(drawn, ax=axis, label="verified matches", shrink=0.7)
    missing = [number for number, name in enumerate(names) if name not in registered]
    if count <= MAX_NAMES:
        _name_images(axis, names, missing)
    else:
        axis.set(xlabel="image", ylabel="image")
        for side in (axis.axvline, axis.axhline):
            for number in missing:
                side(number, color=_ALARM, linewidth=0.6, alpha=0.5)
    if count <= MAX_NUMBERS:
        for (a, b), value in np.ndenumerate(table):
            if value:
                ink = "white" if scale(value) > 0.5 else "#222222"
                axis.text(b, a, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=8)
    good = sum(matches > 0 for matches in verified.values())
    told = f"{count - len(missing):,} of {count:,} images with a pose" + (" (the others red)" if missing else "")
    axis.set_title(f"{good:,} verified pairs, {told}")
    _save(figure, path)


def _name_images(axis: Any, names: Sequence[str], missing: Collection[int]) -> None:
    short = [name if len(name) <= 28 else f"…{name[-27:]}" for name in names]
    short = [name.replace("$", r"\$") for name in short]  # which would begin a formula
    size = 9 if len(names) <= 20 else 7
    axis.set_xticks(range(len(names)), short, rotation=90, fontsize=size)
    axis.set_yticks(range(len(names)), short, fontsize=size)
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        for number in missing:
            labels[number].set_color(_ALARM)
    for number in range(len(names) + 1):
        axis.axvline(number - 0.5, color="white", linewidth=1)
        axis.axhline(number - 0.5, color="white", linewidth=1)


def _save(figure: Any, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=_DPI, facecolor=figure.get_facecolor())
