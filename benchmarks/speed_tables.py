"""What benchmarks/speed.py measured, as tables and a plot: seconds, memory, growth, and which targets are met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speed_methods import METHODS

MARK = "<!-- {} {} -->"  # around the tables in the document that --docs names
OURS = {  # columns of the table of targets
    "linglue": "default",
    "linglue-full": "full effort",
    "linglue-fast": "`linglue-fast`",
    "linglue-geo": "`geo`",
}


@dataclass(frozen=True)
class Cell:
    """One method at one size."""

    features: str  # random or real
    method: str
    size: int
    seconds: float
    bytes: int | None  # peak additional memory; None: not run, seconds are extrapolated
    repeats: int

    @property
    def key(self) -> str:
        """Its name among all cells."""
        return f"{self.features}:{self.method}@{self.size}"

    @property
    def measured(self) -> bool:
        """Whether it ran."""
        return self.bytes is not None


Cells = Mapping[str, Cell]


def growth(cells: Sequence[Cell]) -> float:
    """The exponent p of seconds ~ keypoints^p between the last two of several sizes."""
    one, two = cells[-2:]
    return math.log(two.seconds / one.seconds) / math.log(two.size / one.size)


def tables(cells: Cells, features: str) -> str:
    """Seconds with the ratio to LinGlue's, memory, and growth, as Markdown."""
    mine = [c for c in cells.values() if c.features == features]
    sizes = sorted({c.size for c in mine})
    methods = [m for m in METHODS if any(c.method == m for c in mine)]
    head = "".join(f" {n} |" for n in sizes)
    lines = [f"| seconds (× LinGlue) |{head} growth |", "|---|" + "---:|" * (len(sizes) + 1)]
    for method in methods:
        row = [cells.get(f"{features}:{method}@{n}") for n in sizes]
        own = [cells.get(f"{features}:linglue@{n}") for n in sizes]
        texts = [_seconds(cell, ours) for cell, ours in zip(row, own, strict=True)]
        known = [c for c in row if c and c.measured]
        lines.append(f"| {method} | {' | '.join(texts)} | {f'{growth(known):.2f}' if len(known) > 1 else '–'} |")
    lines += ["", f"| peak additional memory, MB |{head}", "|---|" + "---:|" * len(sizes)]
    for method in methods:
        row = [cells.get(f"{features}:{method}@{n}") for n in sizes]
        texts = ["–" if c is None or c.bytes is None else f"{c.bytes / 1e6:.0f}" for c in row]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _seconds(cell: Cell | None, ours: Cell | None) -> str:
    if cell is None:
        return "–"
    times = cell.seconds / ours.seconds if ours else 1
    ratio = f" ({times:{'.0f' if times >= 10 else '.2g'}}×)" if ours and ours is not cell else ""
    return f"{'' if cell.measured else '~'}{cell.seconds:.3f}{ratio}"


def targets(cells: Cells) -> str:
    """Which of the targets, ratios on random features, ours meet, as Markdown."""
    rows: list[tuple[str, str, list[str]]] = []

    def at_least(text: str, wanted: float, other: str, size: int) -> None:
        rows.append((text, f"≥ {wanted:g}", [_verdict(cells, (other, size), (own, size), wanted, 1) for own in OURS]))

    for size, wanted in ((2048, 25), (4096, 50), (8192, 100)):
        at_least(f"LightGlue, adaptivity off, takes times ours at {size}", wanted, "lightglue-full", size)
    for size, wanted in ((2048, 60), (8192, 250)):
        at_least(f"SuperGlue, 100 iterations, takes times ours at {size}", wanted, "superglue", size)
    for size in (2048, 4096, 8192):
        at_least(f"AdaLAM takes times ours at {size}", 1, "adalam", size)
    text = "ours takes times COLMAP's at 10240"
    rows.append((text, "≤ 2", [_verdict(cells, (own, 10240), ("colmap-sift", 10240), 2, -1) for own in OURS]))
    verdicts = [_verdict(cells, (own, 16384), (own, 4096), 4.8, -1) for own in OURS]
    rows.append(("16384 takes times 4096", "≤ 4.8", verdicts))
    for size, wanted in ((16384, 250), (32768, 400)):
        rows.append((f"MB at {size}", f"≤ {wanted}", [_memory(cells, own, size, wanted) for own in OURS]))
    for product in ("gemm", "gemm-onednn"):
        verdict = _verdict(cells, (product, 8192), ("nearest", 8192), 0.6, 1)
        rows.append(
            (
                f"{product} takes times our nearest neighbours at 8192",
                "≥ 0.6",
                [verdict, *"–" * (len(OURS) - 1)],
            )
        )
    lines = [f"| target | wanted | {' | '.join(OURS.values())} |", "|---|---:|" + "---:|" * len(OURS)]
    return "\n".join(lines + [f"| {text} | {wanted} | {' | '.join(found)} |" for text, wanted, found in rows])


def _verdict(cells: Cells, over: tuple[str, int], under: tuple[str, int], wanted: float, sign: int) -> str:
    one, two = (cells.get(f"random:{method}@{size}") for method, size in (over, under))
    if one is None or two is None:
        return "–"
    ratio = one.seconds / two.seconds
    guess = "" if one.measured and two.measured else "~"
    return f"{guess}{ratio:.3g}, {'met' if sign * ratio >= sign * wanted else '**missed**'}"


def _memory(cells: Cells, method: str, size: int, wanted: float) -> str:
    cell = cells.get(f"random:{method}@{size}")
    if cell is None or cell.bytes is None:
        return "–"
    return f"{cell.bytes / 1e6:.0f}, {'met' if cell.bytes <= 1e6 * wanted else '**missed**'}"


def write_tables(path: Path, name: str, text: str) -> None:
    """Replace what is between the marks in a document.

    Args:
        path: of the document.
        name: of the marks.
        text: what takes its place.
    """
    start, end = (MARK.format(word, name) for word in ("begin", "end"))
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path}: expected {start} and {end}")
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def plot(cells: Cells, path: Path) -> None:
    """Seconds against keypoints, random features, both logarithmic; extrapolated points are hollow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5))
    axes = figure.subplots()
    for method in METHODS:
        mine = (c for c in cells.values() if c.method == method and c.features == "random")
        rows = sorted(mine, key=lambda c: c.size)
        if rows:
            (line,) = axes.loglog([c.size for c in rows], [c.seconds for c in rows], label=method)
            for c in rows:
                face = line.get_color() if c.measured else "white"
                axes.plot(c.size, c.seconds, "o", color=line.get_color(), markerfacecolor=face)
    axes.set(xlabel="keypoints per image", ylabel="seconds per pair, features given")
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120, bbox_inches="tight")
