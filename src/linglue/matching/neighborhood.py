"""Neighborhood selection: seeds spread over the image, and around each seed the matches that move along with it.

Everything works on one direction of one pair: match i is the pair (i, index[i]). A grid tells which points may be near
a seed, so that distances to all others need not be computed, and no N × N array exists at any time. For pairwise
attention the neighborhoods become index tables, made once per pair and used by every layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linglue.matching.nearest import Nearest, mutual

AREA_RATIO = 100.0  # an image holds this many disks of the seed radius
BLOCK_ENTRIES = 1 << 18  # distances computed at a time
CELLS = 4096  # along a side of the grid, at most
PADDED_TOKENS = 1 << 16  # in the tables of one `Groups` …
SPREAD = 1.4  # … whose neighborhoods differ in size by no more than this factor, so that little is padding


@dataclass(frozen=True)
class Keypoints:
    """Where the keypoints of one image are; one entry of the network's input without batch and padding."""

    points: Tensor  # (N, 2) pixels
    size: Tensor  # (2,) width, height
    scales: Tensor | None = None  # (N,) diameters in pixels
    oris: Tensor | None = None  # (N,) radians

    @property
    def shaped(self) -> bool:
        """Whether the features know their scale and orientation."""
        return self.scales is not None and self.oris is not None


@dataclass(frozen=True)
class Neighborhoods:
    """Seeds and, flat, the matches around each: edge e says that match source[e] → target[e] belongs to seed[e]."""

    seeds: Tensor  # (S,) index of the match that is the seed
    seed: Tensor  # (E,) in 0..S−1, ascending
    source: Tensor  # (E,) keypoints of the image the matches start from; once per seed
    target: Tensor  # (E,) their matches; several sources may share a target


def seed_radius(image_size: Tensor) -> Tensor:
    """R = sqrt(W·H / (100 π)) in pixels, for image sizes (..., 2)."""
    return (image_size.float().prod(-1) / (AREA_RATIO * math.pi)).sqrt()


class Grid:
    """Points (N, 2) in square cells, to find those within `radius` of others without comparing all.

    Example:
        >>> grid = Grid(torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 1.0]]), torch.tensor(2.0))
        >>> [point.tolist() for _, _, _, point in grid.near(torch.tensor([[0.0, 0.0]]))]
        [[0, 2]]
    """

    def __init__(self, points: Tensor, radius: Tensor) -> None:
        self.points, self.radius = points, radius
        low, high = (points.amin(0), points.amax(0)) if len(points) else (points.new_zeros(2), points.new_ones(2))
        self.low = low  # (2,)
        # A little larger than the radius, so that rounding moves nothing two cells away.
        self.side = torch.maximum(1.001 * radius, (high - low).max() / CELLS)  # ()
        self.columns = int((high - low)[0].div(self.side)) + 3  # one more at either end, so that rows do not touch
        self.cells, self.order = self._number(points).sort(stable=True)  # (N,)

    def _number(self, points: Tensor) -> Tensor:
        """(n,) the cell of each point (n, 2), counted row by row."""
        column, row = ((points - self.low) / self.side).floor().long().unbind(1)
        return row * self.columns + column

    def near(self, centres: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Points within the radius of centres (S, 2), which must lie in the bounds of the points, in blocks of centres.

        Yields:
            start, stop: the centres of the block; then for every point found the centre, from 0 in each block, and
            the point, (E,) and (E,), in ascending order.
        """
        # What is near a centre lies in three cells side by side in each of three rows.
        rows = torch.arange(-1, 2, device=centres.device) * self.columns  # (3,)
        cell = self._number(centres)[:, None] + rows  # (S, 3)
        first = torch.searchsorted(self.cells, cell - 1)  # (S, 3)
        count = torch.searchsorted(self.cells, cell + 1, right=True) - first  # (S, 3)
        for start, stop in _ranges(count.sum(1).tolist(), BLOCK_ENTRIES):
            part = count[start:stop].flatten()  # (3·s,)
            run = torch.arange(len(part), device=part.device).repeat_interleave(part)  # (e,)
            place = (
                torch.arange(len(run), device=run.device) + (first[start:stop].flatten() - part.cumsum(0) + part)[run]
            )
            point, centre = self.order[place], run // 3  # (e,)
            near = _within(self.points[point], centres[start:stop][centre], self.radius)  # (e,)
            key = (centre[near] * len(self.points) + point[near]).sort().values  # (E,)
            yield start, stop, key // max(1, len(self.points)), key % max(1, len(self.points))


def _ranges(sizes: list[int], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive entries whose sizes add up to no more than `budget`, at least one entry each."""
    start, total = 0, 0
    for stop, size in enumerate(sizes):
        if stop > start and total + size > budget:
            yield start, stop
            start, total = stop, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def _within(points: Tensor, centres: Tensor, radius: Tensor) -> Tensor:
    """(E,) bool: point (E, 2) lies within `radius` of centre (E, 2)."""
    dx, dy = (points - centres).unbind(1)
    return dx * dx + dy * dy <= radius * radius


def select_seeds(points: Tensor, ratio: Tensor, eligible: Tensor, radius: Tensor) -> Tensor:
    """Indices (S,) of the eligible matches whose ratio is the largest among the eligible ones within `radius`.

    points (N, 2) of the image the matches start from, ratio (N,), eligible (N,) bool. Equal ratios: the first wins.
    """
    index = torch.nonzero(eligible)[:, 0]  # (n,)
    if len(index) == 0:
        return index
    points = points[index].float()
    rank = torch.empty_like(index)  # (n,) 0 is the best
    rank[torch.argsort(ratio[index], descending=True, stable=True)] = torch.arange(len(index), device=index.device)
    # In a grid whose cells have the diagonal R all matches of a cell are within R: only a cell's best can be a seed.
    cell = (points / (radius / math.sqrt(2))).floor().long()  # (n, 2)
    cell = cell - cell.amin(0)
    cell = torch.unique(cell[:, 0] * (cell[:, 1].max() + 1) + cell[:, 1], return_inverse=True)[1]  # (n,)
    best = torch.full((len(index),), len(index), dtype=index.dtype, device=index.device)
    best.scatter_reduce_(0, cell, rank, "amin")
    candidates = torch.nonzero(best[cell] == rank)[:, 0]  # (c,)
    beaten = torch.zeros_like(candidates, dtype=torch.bool)  # (c,)
    for start, _, candidate, rival in Grid(points, radius).near(points[candidates]):
        candidate = candidate + start  # (E,)
        beaten[candidate[rank[rival] < rank[candidates[candidate]]]] = True
    return index[candidates[~beaten]]


@dataclass(frozen=True)
class Selection:
    """The seeds of one direction of one pair; their neighborhoods are made on demand, a block at a time.

    Without the separation condition there are as many neighborhoods as matches: storing them would take N × N memory.
    """

    points0: Tensor  # (N, 2) image the matches start from
    matched: Tensor  # (N, 2) in the other image, the point matched to each of points0
    index: Tensor  # (N,) which keypoint of the other image that is
    seeds: Tensor  # (S,) into points0
    reach0: Tensor  # () pixels: λ·R of each image
    reach1: Tensor

    def neighborhoods(self) -> Iterator[Neighborhoods]:
        """All matches within reach0 of the seed in image 0 and, at their other end, within reach1 of the seed's."""
        for start, stop, seed, source in Grid(self.points0, self.reach0).near(self.points0[self.seeds]):
            seeds = self.seeds[start:stop]  # (b,)
            near = _within(self.matched[source], self.matched[seeds[seed]], self.reach1)  # (E,)
            seed, source = seed[near], source[near]
            yield Neighborhoods(seeds, seed, source, self.index[source])


def select(
    view0: Keypoints, view1: Keypoints, nearest0: Nearest, nearest1: Nearest, expansion: float, separation: bool = True
) -> Selection:
    """Seeds among the nearest-neighbour matches from image 0 to image 1, and the reach of their neighborhoods.

    A seed is a mutual nearest neighbour and, with `separation`, the most distinctive one within R.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        nearest0: of every keypoint of image 0, in image 1.
        nearest1: the other way round.
        expansion: λ, reach of a neighborhood in units of R.
        separation: whether seeds keep apart.
    """
    radius0, radius1 = seed_radius(view0.size), seed_radius(view1.size)
    points0, points1 = view0.points.float(), view1.points.float()
    eligible = mutual(nearest0, nearest1)  # (N,)
    seeds = select_seeds(points0, nearest0.ratio, eligible, radius0) if separation else eligible.nonzero()[:, 0]
    matched = points1[nearest0.index] if len(points1) else torch.zeros_like(points0)  # (N, 2)
    return Selection(points0, matched, nearest0.index, seeds, expansion * radius0, expansion * radius1)


def pad_groups(group: Tensor, value: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Ragged to padded: values (E,) of ascending groups (E,) → (groups, n) with zeros behind, and their mask.

    Args:
        group: (E,) which group each value is in, ascending.
        value: (E,) the values.
        groups: how many groups there are, empty ones included.
    """
    count = torch.bincount(group, minlength=groups)  # (groups,)
    position = torch.arange(len(group), device=group.device) - (count.cumsum(0) - count)[group]  # (E,)
    width = int(count.max()) if groups else 0
    padded = value.new_zeros(groups, width)
    padded[group, position] = value
    return padded, torch.arange(width, device=group.device) < count[:, None]


def split_by_size(count: Tensor, budget: int, spread: float = math.inf) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive groups whose padded size (groups × longest) stays within `budget`, at least one group.

    With `spread` the longest of a range is at most that many times as long as its first, so that little is padding.
    """
    start, first, longest = 0, 0, 0
    for stop, size in enumerate(count.tolist()):
        if stop > start and ((stop + 1 - start) * max(longest, size) > budget or size > spread * max(first, 8)):
            yield start, stop
            start, longest = stop, 0
        first, longest = size if stop == start else first, max(longest, size)
    if start < len(count):
        yield start, len(count)


Table = tuple[Tensor, Tensor, Tensor]  # tokens (S, n) that read, tokens (S, m) they read, (S, m, 1) False for padding


@dataclass(frozen=True)
class Groups:
    """Some neighborhoods as index tables: which tokens attend to which, per seed, and where the messages go."""

    tables: Sequence[Table]
    slots: Tensor  # (E,) which of all S·n messages are real, ordered by the token they go to
    starts: Tensor  # (T,) where in `slots` those of a token begin

    @classmethod
    def of(cls, tables: Sequence[Table], readers: Sequence[Tensor], tokens: int) -> Groups:
        """Tables with the way of their messages.

        Args:
            tables: some neighborhoods.
            readers: for every table (S, n) the token of each message, −1 for padding.
            tokens: T, how many tokens there are.
        """
        token = torch.cat([r.flatten() for r in readers])  # (M,)
        slots = (token >= 0).nonzero()[:, 0]
        count = torch.bincount(token[slots], minlength=tokens)  # (T,)
        return cls(tables, slots[torch.argsort(token[slots], stable=True)], count.cumsum(0) - count)


def all_groups(selections: Sequence[Selection], images: Sequence[slice], other: Sequence[int]) -> Iterator[Groups]:
    """The neighborhoods of all images; images: the tokens of each, other: which image each reads."""
    for i, selection in enumerate(selections):
        source, target = images[i], images[other[i]]
        for block in selection.neighborhoods():
            yield from _group(block, source, target, images[-1].stop)


def _group(block: Neighborhoods, source_image: slice, target_image: slice, tokens: int) -> Iterator[Groups]:
    """The neighborhoods of a block, similar sizes together."""
    targets = target_image.stop - target_image.start
    count, order = torch.bincount(block.seed, minlength=len(block.seeds)).sort(stable=True)  # (S,) ascending
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))  # (S,)
    edges = torch.argsort(rank[block.seed], stable=True)  # (E,)
    seed, source = rank[block.seed][edges], block.source[edges] + source_image.start  # (E,) ascending, (E,)
    read = torch.zeros(len(order) * targets, dtype=torch.bool, device=seed.device)
    read[seed * targets + block.target[edges]] = True  # an index set: shared targets count once
    pair = read.nonzero()[:, 0]  # (P,) ascending
    pair_seed, target = pair // max(1, targets), pair % max(1, targets) + target_image.start
    tables: list[Table] = []
    readers: list[Tensor] = []
    for start, stop in split_by_size(count, PADDED_TOKENS, SPREAD):
        bounds = torch.tensor([start, stop], device=seed.device)
        own, its = (slice(*torch.searchsorted(s, bounds).tolist()) for s in (seed, pair_seed))
        sources, real = pad_groups(seed[own] - start, source[own], stop - start)  # (s, n)
        table, mask = pad_groups(pair_seed[its] - start, target[its], stop - start)  # (s, m)
        tables.append((sources, table, mask[..., None]))
        readers.append(sources.masked_fill(~real, -1))
        if stop == len(count) or sum(r.numel() for r in readers) > PADDED_TOKENS:
            yield Groups.of(tables, readers, tokens)
            tables, readers = [], []
