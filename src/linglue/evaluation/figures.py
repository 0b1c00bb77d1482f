"""Pictures of evaluations: curves, matches by correctness beside a peer's, neighborhoods and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.errors import LinGlueError
from linglue.evaluation.result import Result
from linglue.evaluation.store import Prediction
from linglue.evaluation.tasks.homography import CORRECT, HomographyPair
from linglue.evaluation.tasks.pose import MANY
from linglue.evaluation.tasks.scalability import shown_name
from linglue.evaluation.timing import PARTS
from linglue.geometry.homography import reprojection_errors
from linglue.matcher import Matcher
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import select
from linglue.network.entries import matchable
from linglue.network.layers import EncoderLayer, positive
from linglue.types import Features
from linglue.viz import plots
from linglue.viz.canvas import blend_circle, blend_dots, compare, finish, lay_out, save_image
from linglue.viz.matches import correctness, draw_matches

NEIGHBORHOODS_SHOWN = 6
NOTHING = 1e-4  # seconds of CPU; less is not drawn, it would stretch the axis of all others
_COLOURS = np.array(
    [[230, 75, 53], [77, 187, 213], [0, 160, 135], [255, 200, 60], [145, 209, 194], [220, 120, 220]], np.float32
)
_FAINT = np.array([150, 150, 150], np.float32)


def draw_curves(result: Result, path: Path) -> Path | None:
    """The curves of a result, where its task has any.

    Args:
        result: of any task.
        path: .png, .pdf or .svg.

    Returns:
        The path, or None where there is nothing to draw.
    """
    draw = CURVES.get(result.task)
    if draw is None or not result.rows:
        return None
    draw(result, path)
    return path


def _homography(result: Result, path: Path) -> None:
    plots.plot_mma(path, result.summary)


def _pose(result: Result, path: Path) -> None:
    errors = _errors(result, "scene", lambda row: _worse(row["rotation_error"], row["translation_error"]))
    plots.plot_pose(path, {"all": errors["all"]} if len(errors) - 1 > MANY else errors)


def _localization(result: Result, path: Path) -> None:
    plots.plot_recall(path, _errors(result, "scene", lambda row: _number(row["position_error"])))


def _scalability(result: Result, path: Path) -> None:
    """Time and memory of each part, with the exponents of growing time, and accuracy where it was measured."""
    panels: dict[str, plots.Panel] = {}
    for title, column, factor in (("CPU time, ms", "cpu_seconds", 1000), ("peak memory, MB", "megabytes", 1)):
        for row in sorted(result.rows, key=lambda row: PARTS.index(row["part"])):
            if row["cpu_seconds"] < NOTHING:  # a network without layers
                continue
            x, y = panels.setdefault(f"{row['part']}: {title}", {}).setdefault(row["subject"], ([], []))
            x.append(row["keypoints"])
            y.append(factor * row[column])
    accuracy: plots.Panel = {}
    for count, methods in result.summary["accuracy"].items():
        for method, values in methods.items():
            x, y = accuracy.setdefault(method, ([], []))
            x.append(int(count))
            y.append(100 * values["auc"]["5"])
    subjects = dict.fromkeys(row["subject"] for row in result.rows)
    labels = {name: _growth_label(name, result) for name in subjects}
    plots.plot_growth(path, panels, labels, {"pose AUC@5°, %": accuracy} if accuracy else {})


def _growth_label(subject: str, result: Result) -> str:
    """Its name and how the time of its parts grows, where that could be fitted."""
    parts = result.summary["exponents"].get(subject, {})
    grown = [f"{part} n^{of['cpu_seconds']:.1f}" for part, of in parts.items() if "cpu_seconds" in of]
    name = shown_name(subject, result.rows)
    return f"{name}: {', '.join(grown)}" if grown else name


CURVES: dict[str, Callable[[Result, Path], None]] = {
    "homography": _homography,
    "pose": _pose,
    "localization": _localization,
    "scalability": _scalability,
}


def _errors(
    result: Result, group: str, error: Callable[[Mapping[str, Any]], float]
) -> dict[str, dict[str, list[float]]]:
    """Errors by group and method, and of all groups where there are several."""
    return {
        name: {
            method: [error(row) for row in result.rows if row["method"] == method and name in ("all", row[group])]
            for method in methods
        }
        for name, methods in result.summary.items()
    }


def _worse(first: float | None, second: float | None) -> float:
    return max(_number(first), _number(second))


def _number(value: float | None) -> float:
    """Failures are None in stored results."""
    return math.inf if value is None else float(value)


def draw_beside(path: Path, truth: HomographyPair, predictions: Mapping[str, Prediction]) -> None:
    """Matches of two methods in the same pair, green where they are correct.

    Args:
        path: of the picture.
        truth: the pair and its homography.
        predictions: by method, exactly two.
    """
    if len(predictions) != 2:
        raise LinGlueError(f"there are {len(predictions)} methods, expected two to compare")
    canvases, labels = [], []
    for method, found in predictions.items():
        errors = reprojection_errors(truth.homography_1_from_0, found.points0, found.points1)
        images = (truth.pair.image0, truth.pair.image1)
        caption = [f"{(errors <= CORRECT).sum()} of {len(errors)} matches within {CORRECT} px"]
        canvases.append(
            draw_matches(*images, found.points0, found.points1, correct=correctness(errors, CORRECT), caption=caption)
        )
        labels.append(f"{method}: {truth.pair.name}")
    save_image(path, compare(canvases[0], canvases[1], labels[0], labels[1]))


@torch.inference_mode()
def draw_neighborhoods(path: Path, matcher: Matcher, images: Sequence[Path], features: Sequence[Features]) -> None:
    """The largest neighborhoods of a pair, as the pairwise layers of the network see them.

    Seeds are rings; the members of a neighborhood have its colour in both images.

    Args:
        path: of the picture.
        matcher: whose network chooses the neighborhoods.
        images: the two.
        features: of the two images.
    """
    entry0, entry1 = (f.tensors(matcher.device) for f in features)
    encoded = matcher.network.encode(entry0, entry1)
    ((view0, view1, coarse0, coarse1),) = matchable(entry0, entry1, encoded.coarse0, encoded.coarse1)
    config = matcher.network.config
    nearest0, nearest1 = nearest_both_ways(coarse0, coarse1)
    selection = select(view0, view1, nearest0, nearest1, config.expansion, config.separation)
    members: list[tuple[int, np.ndarray, np.ndarray]] = []
    for block in selection.neighborhoods():
        for number, seed in enumerate(block.seeds.tolist()):
            inside = block.seed == number  # (E,)
            members.append((seed, block.source[inside].numpy(), block.target[inside].numpy()))
    members.sort(key=lambda entry: -len(entry[1]))
    canvas, places = lay_out(list(images))
    dots = [place.points(f.keypoints) for place, f in zip(places, features, strict=True)]
    for points in dots:
        blend_dots(canvas, points, 1.2, np.tile(_FAINT, (len(points), 1)))
    for (seed, *sides), colour in zip(_apart(members, features[0]), _COLOURS, strict=False):
        for points, index in zip(dots, sides, strict=True):
            blend_dots(canvas, points[index], 3.0, np.tile(colour, (len(index), 1)))
        for points, index in zip(dots, (seed, int(selection.index[seed])), strict=True):
            blend_circle(canvas, points[index], 14, colour, 1.0, width=3.0)
    save_image(path, finish(canvas, [f"{len(members)} neighborhoods, {NEIGHBORHOODS_SHOWN} shown; rings: seeds"]))


def _apart(members: Sequence[tuple[int, np.ndarray, np.ndarray]], features: Features) -> list[Any]:
    """The largest neighborhoods that do not overlap much in image 0."""
    chosen: list[Any] = []
    reach = 0.18 * max(features.image_size)
    for entry in members:
        point = features.keypoints[entry[0]]
        if all(np.linalg.norm(point - features.keypoints[other[0]]) > reach for other in chosen):
            chosen.append(entry)
        if len(chosen) == NEIGHBORHOODS_SHOWN:
            break
    return chosen


@torch.inference_mode()
def draw_attention(
    path: Path, matcher: Matcher, images: Sequence[Path], features: Sequence[Features], query: int
) -> None:
    """What a keypoint of image 0 reads of image 1 in the last cross-attention layer: brighter dots weigh more.

    Args:
        path: of the picture.
        matcher: whose network is looked at.
        images: the two.
        features: of the two images.
        query: index of the keypoint in image 0.
    """
    weights = attention_weights(matcher, features, query).numpy()  # (M,)
    canvas, places = lay_out(list(images))
    point = places[0].points(features[0].keypoints[query : query + 1])[0]
    blend_circle(canvas, point, 14, _COLOURS[0], 1.0, width=3.0)
    dots = places[1].points(features[1].keypoints)
    strength = np.clip((weights - np.quantile(weights, 0.5)) / (np.quantile(weights, 0.995) - np.median(weights)), 0, 1)
    order = np.argsort(strength)
    colours = _FAINT + strength[order, None] * (np.array([255, 235, 59], np.float32) - _FAINT)
    for radius, part in ((1.5, strength[order] < 0.5), (3.0, strength[order] >= 0.5)):
        blend_dots(canvas, dots[order][part], radius, colours[part])
    effective = 1 / float((weights**2).sum())
    caption = [f"cross attention of one keypoint, as if spread over {effective:.0f} of {len(weights)} keypoints"]
    save_image(path, finish(canvas, caption))


@torch.inference_mode()
def attention_weights(matcher: Matcher, features: Sequence[Features], query: int) -> torch.Tensor:
    """How a keypoint of image 0 reads image 1 in the last cross-attention layer.

    Args:
        matcher: whose network is looked at.
        features: of the two images.
        query: index of the keypoint.

    Returns:
        (M,) weights, means over heads; they sum to 1.
    """
    layer = matcher.network.linear[-1]
    if not isinstance(layer, EncoderLayer):
        raise LinGlueError("the network has no cross attention, expected linear blocks")
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        matcher.network.encode(*(f.tensors(matcher.device) for f in features))
    finally:
        hook.remove()
    tokens, heads = seen[0], matcher.network.config.heads
    queries = positive(layer.query(tokens[query])).unflatten(-1, (heads, -1))  # (H, c)
    keys = positive(layer.key(tokens[len(features[0]) :])).unflatten(-1, (heads, -1))  # (M, H, c)
    products = torch.einsum("hc,mhc->mh", queries, keys)  # (M, H)
    return (products / products.sum(0)).mean(1).cpu()
