"""Textured surfaces made of plane faces, seen by a pinhole camera: exact inverse depth and colour of every pixel.

World and cameras: x right, y down, z forward. A face has an affine texture: texel (u, v) lies at origin + u·a + v·b.
Then H = K [R a, R b, R origin + t] takes (u, v, 1) to z·(x, y, 1), and the rows of H⁻¹ are u/z, v/z and 1/z as linear
functions of the pixel: everything that is drawn or measured here is one of these three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.geometry.camera import View
from linglue.geometry.pixels import corner_from_pixel, pixel_from_corner
from linglue.io.images import Image
from linglue.training.images.warp import level_limits, linear, warp_level
from linglue.types import ImageSize

Vectors = NDArray[np.float64]
NEAR = 0.05  # closest drawn depth, in units of the world
SHIFT = 4  # fractional bits of polygon corners
NOTHING = -1  # face number of the sky


@dataclass(frozen=True, eq=False)
class Surface:
    """One or many plane faces with one texture; seen from the front only, where u is right and v is down."""

    texture: Sequence[Image]  # pyramid
    corners: Vectors  # (F, C, 3) convex polygons in the world
    origins: Vectors  # (F, 3) where texel (0, 0) would lie
    axes: Vectors  # (F, 2, 3) world steps of one texel in u and v


def quad(texture: Sequence[Image], corner: Vectors, right: Vectors, down: Vectors) -> Surface:
    """The whole texture on the parallelogram at `corner` with the sides `right` and `down`.

    Args:
        texture: of `pyramid`.
        corner: (3,) where its top-left corner lies.
        right: (3,) its upper side.
        down: (3,) its left side.
    """
    height, width = texture[0].shape[:2]
    a, b = right / width, down / height
    corners = np.stack([corner, corner + right, corner + right + down, corner + down])
    return Surface(texture, corners[None], (corner + corner_from_pixel(0.0) * (a + b))[None], np.stack([a, b])[None])


def relief(texture: Sequence[Image], corner: Vectors, right: Vectors, down: Vectors, height: Vectors) -> Surface:
    """The texture on a surface (rows, columns) of heights above the parallelogram, as two triangles per cell.

    Args:
        texture: of `pyramid`.
        corner: (3,) where its top-left corner lies.
        right: (3,) its upper side.
        down: (3,) its left side.
        height: (rows, columns) above the parallelogram.
    """
    rows, columns = height.shape
    normal = -np.cross(right, down) / np.linalg.norm(np.cross(right, down))  # towards the viewer
    v, u = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    vertices = corner + u[..., None] * right + v[..., None] * down + height[..., None] * normal  # (rows, columns, 3)
    texels = pixel_from_corner(np.stack([u * texture[0].shape[1], v * texture[0].shape[0]], axis=-1))
    parts = []
    for offsets in (((0, 0), (0, 1), (1, 0)), ((0, 1), (1, 1), (1, 0))):
        pick = [(slice(r, rows - 1 + r), slice(c, columns - 1 + c)) for r, c in offsets]
        parts.append((np.stack([vertices[p] for p in pick], axis=2), np.stack([texels[p] for p in pick], axis=2)))
    corners = np.concatenate([p[0].reshape(-1, 3, 3) for p in parts])
    uv = np.concatenate([p[1].reshape(-1, 3, 2) for p in parts])
    edges_uv, edges = uv[:, 1:] - uv[:, :1], corners[:, 1:] - corners[:, :1]  # (F, 2, 2), (F, 2, 3)
    axes = np.linalg.solve(edges_uv, edges)  # rows: edges = edges_uv @ axes
    origins = corners[:, 0] - np.einsum("fk,fkd->fd", uv[:, 0], axes)
    return Surface(texture, corners, origins, axes)


@dataclass(frozen=True, eq=False)
class Geometry:
    """What a camera sees, without colour."""

    view: View
    inverse_depth: NDArray[np.float32]  # (H, W), 0 in the sky
    face: NDArray[np.int32]  # (H, W) number of the face among those of all surfaces, or NOTHING
    planes: Vectors  # (F, 3, 3) per face: rows u/z, v/z, 1/z as functions of (x, y, 1)
    surface: NDArray[np.int32]  # (F,) which surface a face belongs to


def see(surfaces: Sequence[Surface], view: View) -> Geometry:
    """Depth and face of every pixel by a z-buffer.

    Args:
        surfaces: the scene.
        view: camera and pose.
    """
    shape = view.camera.size.height, view.camera.size.width
    nearest = np.zeros(shape, dtype=np.float32)
    face = np.full(shape, NOTHING, dtype=np.int32)
    planes, front = _planes(surfaces, view)
    counts = [len(surface.corners) for surface in surfaces]
    first = 0
    for surface, count in zip(surfaces, counts, strict=True):
        if count > 1:
            part = slice(first, first + count)
            _draw_mesh(surface.corners, planes[part], front[part], view, first, nearest, face)
        elif front[first]:
            _draw_polygon(surface.corners[0], planes[first], view, first, nearest, face)
        first += count
    owner = np.repeat(np.arange(len(surfaces), dtype=np.int32), counts)
    return Geometry(view, nearest, face, planes, owner)


def _planes(surfaces: Sequence[Surface], view: View) -> tuple[Vectors, NDArray[np.bool_]]:
    """(F, 3, 3) pixel → (u, v, 1)/z, and (F,) which faces show their front."""
    axes = np.concatenate([surface.axes for surface in surfaces])
    origins = np.concatenate([surface.origins for surface in surfaces])
    local = np.concatenate([axes, (origins - view.centre)[:, None]], axis=1)  # (F, 3, 3) rows
    matrices = np.swapaxes(local @ view.projection.T, 1, 2)
    determinants = np.linalg.det(matrices)
    edge_on = np.abs(determinants) < 1e-9 * np.abs(matrices).max(axis=(1, 2)) ** 3
    matrices[edge_on] = np.eye(3)
    return np.asarray(np.linalg.inv(matrices)), np.asarray((determinants > 0) & ~edge_on)


def _draw_polygon(
    corners: Vectors,
    plane: Vectors,
    view: View,
    number: int,
    nearest: NDArray[np.float32],
    face: NDArray[np.int32],
) -> None:
    outline = _outline(corners, view)
    if outline is None:
        return
    height, width = nearest.shape
    low = np.maximum(np.floor(outline.min(axis=0)).astype(int), 0)
    high = np.minimum(np.ceil(outline.max(axis=0)).astype(int) + 1, [width, height])
    if (low >= high).any():
        return
    mask = np.zeros((high[1] - low[1], high[0] - low[0]), dtype=np.uint8)
    cv2.fillConvexPoly(mask, _fixed_point(outline - low), 1, cv2.LINE_8, SHIFT)
    window = slice(low[1], high[1]), slice(low[0], high[0])
    inverse = linear(plane[2], low[0], high[0], low[1], high[1])
    closer = (mask & (inverse > nearest[window])).view(np.uint8)
    cv2.copyTo(inverse, closer, nearest[window])
    face[window][closer.view(np.bool_)] = number


def _draw_mesh(
    corners: Vectors,
    planes: Vectors,
    front: NDArray[np.bool_],
    view: View,
    first: int,
    nearest: NDArray[np.float32],
    face: NDArray[np.int32],
) -> None:
    """Painter's algorithm within the mesh (a height field has an order), z-buffer against everything else."""
    count, sides = corners.shape[:2]
    pixels, depths = view.project(corners.reshape(-1, 3), NEAR)
    pixels, depths = pixels.reshape(count, sides, 2), depths.reshape(count, sides)
    limit = np.array(view.camera.size) - 1
    shown = front & (depths > NEAR).all(axis=1)
    shown &= (pixels.max(axis=1) >= 0).all(axis=1) & (pixels.min(axis=1) <= limit).all(axis=1)
    shown &= np.abs(pixels).max(axis=(1, 2)) < 8 * max(view.camera.size)  # the fixed-point range of OpenCV
    index = np.flatnonzero(shown)
    if not len(index):
        return
    index = index[np.argsort(-depths[index].mean(axis=1), kind="stable")]
    low = np.maximum(np.floor(pixels[index].min(axis=(0, 1))).astype(int), 0)
    high = np.minimum(np.ceil(pixels[index].max(axis=(0, 1))).astype(int) + 1, limit + 1)
    drawn = np.full((high[1] - low[1], high[0] - low[0]), NOTHING, dtype=np.int32)
    outlines = _fixed_point(pixels[index] - low)
    for number, outline in zip(index.tolist(), outlines, strict=True):
        cv2.fillConvexPoly(drawn, outline, number, cv2.LINE_8, SHIFT)
    window = slice(low[1], high[1]), slice(low[0], high[0])
    y, x = np.nonzero(drawn != NOTHING)
    numbers = drawn[y, x]
    row = planes[:, 2].astype(np.float32)[numbers]
    inverse = row[:, 0] * (x + low[0]) + row[:, 1] * (y + low[1]) + row[:, 2]
    closer = inverse > nearest[window][y, x]
    nearest[window][y[closer], x[closer]] = inverse[closer]
    face[window][y[closer], x[closer]] = first + numbers[closer]


def _outline(corners: Vectors, view: View) -> Vectors | None:
    """Pixels (C, 2) of a polygon clipped to what lies in the field of view, or None."""
    width, height = view.camera.size
    local = (corners - view.centre) @ view.projection.T  # (x·z, y·z, z)
    # Half spaces: in front of the camera, and within a frame around the image that keeps fixed-point numbers small.
    frame = float(max(width, height))
    for half in (
        (0, 0, 1, -NEAR),
        (1, 0, frame, 0),
        (-1, 0, width + frame, 0),
        (0, 1, frame, 0),
        (0, -1, height + frame, 0),
    ):
        signed = local @ np.array(half[:3]) + half[3]
        if (signed >= 0).all():
            continue
        kept: list[Vectors] = []
        for k in range(len(local)):
            here, there = signed[k - 1], signed[k]
            if (here >= 0) != (there >= 0):
                kept.append(local[k - 1] + here / (here - there) * (local[k] - local[k - 1]))
            if there >= 0:
                kept.append(local[k])
        if len(kept) < 3:
            return None
        local = np.array(kept)
    return np.asarray(local[:, :2] / local[:, 2:])


def _fixed_point(points: Vectors) -> NDArray[np.int32]:
    return np.rint(points * (1 << SHIFT)).astype(np.int32)


def colour(surfaces: Sequence[Surface], geometry: Geometry, sky: Image) -> Image:
    """(H, W, 3) the image of the scene; `sky` (H, W, 3) shows where there is nothing.

    Args:
        surfaces: the scene.
        geometry: of `see`.
        sky: (H, W, 3) what is behind it.
    """
    image = sky.copy()
    first = 0
    for surface in surfaces:
        last = first + len(surface.corners) - 1
        mine: NDArray[np.uint8] = np.asarray(cv2.inRange(geometry.face, first, last), dtype=np.uint8)
        x0, y0, width, height = cv2.boundingRect(mine)
        if width:
            window = slice(y0, y0 + height), slice(x0, x0 + width)
            paint = _paint_quad if last == first else _paint_mesh
            paint(surface.texture, geometry, first, window, mine[window], image[window])
        first = last + 1
    return image


Window = tuple[slice, slice]  # rows and columns


def _paint_quad(
    texture: Sequence[Image], geometry: Geometry, face: int, window: Window, mask: NDArray[np.uint8], image: Image
) -> None:
    """Colour the pixels of `mask` in `image`, both parts of the view cut out by `window`."""
    plane = geometry.planes[face]
    plane = plane @ np.array([[1, 0, window[1].start], [0, 1, window[0].start], [0, 0, 1]])
    size = ImageSize(mask.shape[1], mask.shape[0])
    w = geometry.inverse_depth[window] * np.float32(1 / np.cbrt(np.linalg.det(plane)))
    for k, where in _by_level(w, mask, len(texture)):
        cv2.copyTo(warp_level(texture, k, plane, size), where, image)


def _paint_mesh(
    texture: Sequence[Image], geometry: Geometry, first: int, window: Window, mask: NDArray[np.uint8], image: Image
) -> None:
    """The same for many faces: texture coordinates and level of each pixel by its own face."""
    y, x = np.nonzero(mask)
    face = geometry.face[window][y, x] - first
    planes = geometry.planes[first : first + int(face.max()) + 1]
    rows = planes.astype(np.float32)[face]  # (P, 3, 3)
    pixel = np.stack([x + window[1].start, y + window[0].start, np.ones_like(x)], axis=1).astype(np.float32)
    values = np.einsum("pij,pj->pi", rows, pixel)  # u/z, v/z, 1/z
    u, v, w = (np.zeros(mask.shape, dtype=np.float32) for _ in range(3))
    u[y, x], v[y, x] = values[:, 0] / values[:, 2], values[:, 1] / values[:, 2]
    w[y, x] = values[:, 2] / np.cbrt(np.linalg.det(planes)).astype(np.float32)[face]
    for k, where in _by_level(w, mask, len(texture)):
        half = 0.5**k
        part = cv2.remap(texture[k], u * half, v * half, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        cv2.copyTo(part, where, image)


def _by_level(w: NDArray[np.float32], mask: NDArray[np.uint8], count: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The pyramid levels in use, each with the masked pixels that are read from it."""
    limits = [*level_limits(count), 0.0]
    for k in range(count):
        where = mask & np.asarray(cv2.inRange(w, limits[k + 1], limits[k]), dtype=np.uint8)
        if where.any():
            yield k, where
