"""Results for people: one self-contained HTML page, and docs/benchmarks.md."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linglue.core.atomic import atomic_path
from linglue.evaluation.published import SOURCE, TABLES
from linglue.evaluation.result import Result, Table
from linglue.evaluation.standings import ANY, standings

TITLES = {
    "homography": "Planar scenes: Oxford, HPatches protocol",
    "pose": "Relative pose: EPFL",
    "scenes": "Relative pose: held-out scenes",
    "planes": "Extreme views: EVD",
    "scores": "Are scores honest?",
    "reconstruction": "Sparse models: Fountain and Herz-Jesu, ETH protocol",
    "localization": "Localization, each image among the others",
    "front-ends": "Front-ends alone",
    "scalability": "Time, memory and accuracy against the number of keypoints",
    "ablation": "What each part contributes",
    "ray": "Many machines: Ray beside the process pool",
    "dense": "Dense points",
    "viewing": "Looking at a model",
    "memory": "Memory of the pipeline",
}
QUIET = 0.93  # share of a core that a process gets on a machine without other work
OTHER_SECTIONS = ("ray", "dense", "viewing", "memory")  # measured by scripts of their own
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
h1,h2{line-height:1.2}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
th{cursor:pointer;background:#f3f3f3;position:sticky;top:0}
th[data-d="1"]::after{content:" ▲"}th[data-d="-1"]::after{content:" ▼"}
td.l,th.l{text-align:left}tr.ours td{font-weight:600;background:#fff6ec}
p.note{color:#555;font-size:.9em}img{max-width:100%}div.t{overflow-x:auto}
"""
_SCRIPT = """
for(const th of document.querySelectorAll('th'))th.onclick=()=>{
 const row=[...th.parentNode.children],i=row.indexOf(th),b=th.closest('table').tBodies[0];
 const d=th.dataset.d=='1'?-1:1;
 for(const other of row)delete other.dataset.d;
 th.dataset.d=d;
 const v=r=>r.cells[i].textContent,n=s=>parseFloat(s.replaceAll(',',''));
 [...b.rows].sort((p,q)=>{const x=v(p),y=v(q),k=n(x),l=n(y);
  if(isNaN(k)&&isNaN(l))return d*x.localeCompare(y);
  return isNaN(k)?1:isNaN(l)?-1:d*(k-l)}).forEach(r=>b.append(r))}
"""


def write_html(
    path: Path,
    title: str,
    results: Mapping[str, Result],
    pictures: Mapping[str, Sequence[Path]],
    about: Sequence[str],
    published: bool = False,
) -> None:
    """One page with everything inside: tables that sort by a click on their header, and embedded pictures.

    Args:
        path: of the page.
        title: of the page.
        results: by section.
        pictures: PNG and JPEG files by section.
        about: lines about machine and settings.
        published: whether figures of systems that cannot be run here follow, marked as such.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(line)}</p>" for line in about)]
    compared = standings(results)
    if compared.rows:
        parts += [
            "<h2>Where we win and lose</h2>",
            f'<p class="note">{html.escape(STANDINGS.replace("`", ""))}</p>',
            _html_table(compared),
        ]
    for name, result in results.items():
        parts.append(f"<h2>{html.escape(TITLES.get(name, name))}</h2>")
        parts += [_html_table(table) for table in result.shown()]
        parts += [f'<p class="note">{html.escape(line)}</p>' for line in result.note.splitlines()]
        for picture in pictures.get(name, ()):
            data = base64.b64encode(picture.read_bytes()).decode("ascii")
            kind = "png" if picture.suffix == ".png" else "jpeg"
            parts.append(f'<p><img alt="{html.escape(picture.stem)}" src="data:image/{kind};base64,{data}"></p>')
    if published:
        parts.append(f"<h2>Published figures</h2><p>{html.escape(SOURCE)}.</p>")
        parts += [f"<h3>{html.escape(caption)}</h3>{_html_table(table)}" for caption, table in TABLES.items()]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}<script>{_SCRIPT}</script></html>\n"
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _html_table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=l' if i < table.labels else ''}>{html.escape(text)}</{tag}>" for i, text in enumerate(row)
        )

    body = "".join(
        f"<tr{' class=ours' if any(_ours(text) for text in row[: table.labels]) else ''}>{cells(row, 'td')}</tr>"
        for row in table.rows
    )
    head = f"<thead><tr>{cells(table.header, 'th')}</tr></thead>"
    return f'<div class="t"><table>{head}<tbody>{body}</tbody></table></div>'


def _ours(name: str) -> bool:
    return name == "linglue" or name.endswith(":linglue")


def about(stamps: Mapping[str, Mapping[str, Any]], quick: bool) -> list[str]:
    """Machine, versions and time of a run, in lines.

    Args:
        stamps: of `suite.stamps`.
        quick: whether it was a quick run.
    """
    if not stamps:
        return []
    last = list(stamps.values())[-1]
    versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
    minutes = {name: stamp["cpu_seconds"] / 60 for name, stamp in stamps.items()}
    share = 60 * sum(minutes.values()) / max(1e-9, sum(stamp["seconds"] for stamp in stamps.values()))
    busy = f"The machine had other work (a process got {share:.0%} of a core): compare" if share < QUIET else "Compare"
    return [
        f"{last['processor']}, {last['cores']} cores, {last['threads']} thread(s) per process; {last['system']}; "
        f"{last['date']}.",
        f"{versions}.",
        f"{'Quick run: few sequences, scenes and keypoints; figures are rough. ' if quick else ''}"
        f"{sum(minutes.values()):.1f} minutes of CPU time (what an earlier run left is not counted): "
        f"{', '.join(f'{name} {spent:.1f}' for name, spent in minutes.items())}. "
        f"{busy} times only within a table, as ratios.",
    ]


HEAD = """# Benchmarks

Written by one command; do not edit. A killed run resumes; tables, curves and drawings are in WORK/results/report.html:

```sh
linglue eval all --data DATA --scenes SCENES --peers PEERS -o WORK --docs docs/benchmarks.md
linglue eval all --quick --data DATA --scenes SCENES --peers PEERS -o WORK --docs docs/benchmarks.md
```

Rows named `FRONT_END:MATCHER` that share a front-end see the very same keypoints, at most N of them where a row ends in
/N; all rows of a table come from one run, peers with their own published weights (`../shared/tools/get_peers.sh DIR`,
then `--peers DIR`). `linglue` is what users get: `linpoint` is the default front-end; a network that has a learned
consensus uses it, others the filter with consensus and completion. `linglue-paper` has the paper's filter in its place.
`ratio` is mutual; `ratio-oneway` is Lowe's test alone. Constants were chosen on `entry-P10`, on validation pairs of
held-out images and on some of the held-out scenes; nothing was chosen on Oxford, Fountain or Herz-Jesu, but their
figures were seen in between. Held-out scenes are image collections with poses from a reconstruction by ALIKED and
LightGlue (`benchmarks/pose_scenes.py`), which favours `aliked:lightglue` a little.
"""
STANDINGS = f"""Measure by measure: `linglue` against the best of the others on the same features; `{ANY}` is what
users get by default against the best of all others, whatever their features."""
OTHER_PAGES = """## Pages of their own

- [Many machines](scaling.md): how Ray is used, what 1,000,000 images cost (`benchmarks/scaling.py`);
  [dense points](dense.md) (`benchmarks/dense.py`); [viewing](viewing.md) (`benchmarks/viewing.py`).
- [Accuracy on real pairs](accuracy.md): the sections on held-out scenes, extreme views and scores in a document of
  their own (`benchmarks/accuracy.py`); [models](models.md): that on front-ends (`benchmarks/front_ends.py`).
- [Performance](performance.md): all methods in turns in one process beside the floors of what a CPU can do
  (`benchmarks/speed.py`); the table of growth above gives every part a process of its own, for its memory.
"""
OTHER_DATA = """## Other data sets

In their official layouts, with the field's number of keypoints and image size:

```sh
linglue eval homography hpatches-sequences-release --protocol hpatches --methods superpoint:superglue superpoint:linglue
linglue eval pose megadepth1500 --protocol megadepth-1500 --methods aliked:lightglue aliked:linglue
linglue eval pose scannet1500 --protocol scannet-1500 --methods superpoint:superglue superpoint:linglue
linglue eval pose eth3d/courtyard eth3d/facade --methods sift:ratio sift:linglue
linglue eval localization aachen_v1.1 --protocol aachen --methods superpoint:superglue superpoint:linglue
linglue eval reconstruction Madrid_Metropolis --methods sift:ratio sift:linglue
```

HPatches without the eight sequences that D2-Net leaves out; accuracy with inclusive thresholds, one way, a pair without
matches counts 0. Poses: the larger of both angles, AUC by the exact trapezoid; estimator and threshold are printed.
Aachen's truth is not public: the files poses-METHOD.txt are what visuallocalization.net takes."""


def write_markdown(
    path: Path, results: Mapping[str, Result], stamps: Mapping[str, Mapping[str, Any]], quick: bool
) -> None:
    """The document: machine, settings, where we win and lose, all tables, and published figures marked as such.

    Args:
        path: of the document.
        results: by section.
        stamps: of `suite.stamps`.
        quick: whether it was a quick run.
    """
    parts = [HEAD, *about(stamps, quick), "## Where we win and lose", STANDINGS, standings(results).markdown()]
    for name, result in results.items():
        parts += [f"## {TITLES[name]}", *(table.markdown() for table in result.shown()), _wrapped(result.note)]
    parts += [
        OTHER_PAGES,
        OTHER_DATA,
        "## Published figures",
        f"{SOURCE}.",
        *(f"{t}:\n\n{table.markdown()}" for t, table in TABLES.items()),
    ]
    with atomic_path(path) as temporary:
        temporary.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")


def _wrapped(note: str) -> str:
    return "\n\n".join(note.splitlines())
