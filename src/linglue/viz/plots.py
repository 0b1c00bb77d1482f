"""Curves of evaluations as pictures. Needs matplotlib, which is imported only here and only when a plot is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError

SUFFIXES = (".png", ".pdf", ".svg")
OURS = "linglue"  # drawn on top, in the strongest colour
# Okabe and Ito's colours, told apart by colour-blind readers too; dashes and markers also survive grey print.
_STYLES = (
    ("#0072B2", "--", "o"),
    ("#E69F00", "--", "s"),
    ("#009E73", "--", "^"),
    ("#CC79A7", "-.", "D"),
    ("#56B4E9", "-.", "v"),
    ("#000000", ":", "x"),
    ("#8C564B", "-", "P"),
    ("#7F7F7F", "-", "X"),
    ("#6A3D9A", "-", "<"),
    ("#B2B200", "-", ">"),
    ("#1B4F72", ":", "h"),
    ("#E377C2", ":", "d"),
)
_OURS = ("#D55E00", "-", "*")
_FRONT_ENDS = {
    "linpoint": "#D55E00",
    "sift": "#0072B2",
    "superpoint": "#009E73",
    "aliked": "#CC79A7",
    "disk": "#E69F00",
    "xfeat": "#56B4E9",
}
_LINES = {
    "mnn": (":", "o"),
    "ratio": ("--", "s"),
    "ratio-oneway": ("--", "D"),
    "adalam": ("-.", "v"),
    "colmap-sift": (":", "x"),
    "superglue": ("--", "^"),
    "superglue-10": ("-.", "^"),
    "lightglue": ("--", "P"),
    "linglue-full": ("-.", "*"),
    "linglue-fast": ("--", "*"),
    "linglue-paper": ("-.", "s"),
}
_DEGREES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_METRES = (0.001, 0.005, 0.02, 0.05, 0.25, 1, 5)  # 5 m is the loosest of Aachen
COLUMNS = 3  # panels beside each other, so that a page need not shrink them
Errors = Mapping[str, Mapping[str, Sequence[float]]]  # by scene and method
Panel = dict[str, tuple[list[float], list[float]]]  # by name of the curve: x and y


def check_plotting() -> None:
    """Refuse before any work is done when there is no matplotlib."""
    _figure_class()


def plot_mma(path: Path, summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Mean matching accuracy over the threshold, one panel per split; `summary` of evaluation.homography."""
    if len(summary) == 2:  # one kind of change: all pairs are the same pairs again
        summary = dict(list(summary.items())[:1])
    figure, axes = _panels([f"{split} ({_pairs(methods)} pairs)" for split, methods in summary.items()])
    for axis, methods in zip(axes, summary.values(), strict=True):
        for number, (method, values) in enumerate(methods.items()):
            thresholds = [int(t) for t in values["mma"]]
            _curve(axis, method, number, thresholds, [100 * a for a in values["mma"].values()], marked=True)
        axis.set_xlabel("threshold (px)")
        axis.set_xticks(thresholds)
        axis.set_xlim(thresholds[0], thresholds[-1])
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("mean matching accuracy (%)")
    _save(figure, axes, path)


def plot_pose(path: Path, errors: Errors) -> None:
    """Share of pairs over the pose error in degrees (logarithmic), one panel per scene.

    Args:
        path: of the picture.
        errors: degrees by scene and method; infinite where there is no pose.
    """
    _plot_shares(path, errors, _DEGREES, "pairs", "pose error (degrees)")


def plot_recall(path: Path, errors: Errors) -> None:
    """Share of localized images over the position error in metres (logarithmic), one panel per scene.

    Args:
        path: of the picture.
        errors: metres by scene and method; infinite where there is no pose.
    """
    _plot_shares(path, errors, _METRES, "images", "position error (m)")


def _plot_shares(path: Path, errors: Errors, ticks: Sequence[float], things: str, label: str) -> None:
    """Share of `things` within an error, from the first to the last of the ticks, logarithmic."""
    counts = [len(next(iter(methods.values()))) for methods in errors.values()]
    figure, axes = _panels([f"{scene} ({count} {things})" for scene, count in zip(errors, counts, strict=True)])
    lowest, highest = ticks[0], ticks[-1]
    for axis, methods in zip(axes, errors.values(), strict=True):
        for number, (method, values) in enumerate(methods.items()):
            ordered = np.sort(np.asarray(values, dtype=np.float64))
            x = np.unique(np.concatenate([[lowest], ordered[(ordered > lowest) & (ordered < highest)], [highest]]))
            y = 100 * np.searchsorted(ordered, x, side="right") / len(ordered)
            _curve(axis, method, number, x, y, marked=False)
        axis.set_xlabel(label)
        axis.set_xscale("log")
        axis.set_xlim(lowest, highest)
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    for axis in axes[::COLUMNS]:
        axis.set_ylabel(f"{things} within the error (%)")
    _save(figure, axes, path)


def plot_growth(
    path: Path, panels: Mapping[str, Panel], labels: Mapping[str, str], shares: Mapping[str, Panel] | None = None
) -> None:
    """Costs over the number of keypoints, both logarithmic, one panel each; then shares, with a legend of their own.

    Args:
        path: of the picture.
        panels: by title and name of the curve: numbers of keypoints and costs.
        labels: what the legend calls a curve, where that is not its name.
        shares: the same for percentages, whose axis is not logarithmic.
    """
    shares = shares or {}
    titles = [*panels, *shares]
    figure, axes = _grid(len(titles), 3.9, 3.6)
    ticker = import_module("matplotlib.ticker")
    names = dict.fromkeys(name for curves in panels.values() for name in curves)
    numbers = {name: number for number, name in enumerate(names)}  # a curve looks the same in all panels
    for axis, title, curves in zip(axes, titles, [*panels.values(), *shares.values()], strict=True):
        for number, (name, (x, y)) in enumerate(curves.items()):
            number, label = (number, name) if title in shares else (numbers[name], labels.get(name, name))
            _curve(axis, name, number, x, np.maximum(y, 1e-3), marked=True, label=label)
        axis.set(title=title, xlabel="keypoints", xscale="log", yscale="linear" if title in shares else "log")
        ticks = sorted({count for x, _ in curves.values() for count in x})
        axis.set_xticks(ticks, [f"{count // 1024}k" if count >= 1024 else f"{count}" for count in map(int, ticks)])
        axis.minorticks_off()
        axis.grid(True, color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        if title in shares:
            axis.legend(frameon=False, fontsize="small")
        else:
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))  # one decade may be all there is
            axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    _save(figure, axes[: len(panels)], path, columns=min(len(titles), COLUMNS))


def _pairs(methods: Mapping[str, Mapping[str, Any]]) -> int:
    return int(next(iter(methods.values()))["pairs"])


def _figure_class() -> Any:
    """matplotlib's Figure, used without pyplot: no window, no global state."""
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise LinGlueError("--plot needs matplotlib, which is not installed: pip install matplotlib") from error


def _panels(titles: Sequence[str]) -> tuple[Any, list[Any]]:
    figure, axes = _grid(len(titles), 3.4, 3.2, sharey=True)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_ylim(0, 100)
        axis.grid(True, color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
    return figure, axes


def _grid(count: int, width: float, height: float, sharey: bool = False) -> tuple[Any, list[Any]]:
    """A figure with so many panels of a size in inches, at most COLUMNS beside each other."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = _figure_class()(figsize=(max(6.0, 1.2 + width * columns), 1.2 + height * rows), layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns, sharey=sharey)))
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _curve(axis: Any, method: str, number: int, x: Any, y: Any, marked: bool, label: str | None = None) -> None:
    front_end, _, matcher = method.rpartition(":")
    ours = matcher == OURS
    colour, dashes, marker = _OURS if ours else _STYLES[number % len(_STYLES)]
    if number >= len(_STYLES) and not ours:  # the colours again, with other markers
        marker = _STYLES[(number + 1) % len(_STYLES)][2]
    if front_end:  # with several front-ends each has its colour, and each matcher its line
        colour = _FRONT_ENDS.get(front_end, colour)
        if not ours:
            dashes, marker = _LINES.get(matcher.partition("/")[0], (dashes, marker))
    axis.plot(
        x,
        y,
        label=label or method,
        color=colour,
        linestyle=dashes,
        marker=marker if marked else None,
        markersize=7 if ours else 4,
        linewidth=2.2 if ours else 1.3,
        drawstyle="default" if marked else "steps-post",
        zorder=3 if ours else 2,
        clip_on=not marked,  # markers on the frame stay whole
    )


def _save(figure: Any, axes: Sequence[Any], path: Path, columns: int | None = None) -> None:
    """Write the picture with one legend of all curves below, in so many columns, or as many as fit."""
    curves: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            curves.setdefault(label, handle)
    columns = min(len(curves), columns or 1 + min(len(axes), COLUMNS))
    figure.legend(curves.values(), curves.keys(), loc="outside lower center", ncols=columns, frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
