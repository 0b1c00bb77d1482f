"""Parts of one self-contained HTML page: a 3D plot (plotly, imported late), pictures, tables and bars; no network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import cv2
import numpy as np

from linglue.core.optional import need
from linglue.io.images import Image
from linglue.viz.scene import Scene

JPEG_QUALITY = 85

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2128; background: #fff; max-width: 1080px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.7em; margin-bottom: 0; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .15em 1.2em .15em 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } td.bar { width: 60%; }
td.bar div { background: #00897b; height: .8em; border-radius: 2px; }
img { max-width: 100%; display: block; } figure { margin: 1em 0; } figcaption { color: #555; } .warn { color: #c62828; }
"""
_NIGHT = "#14161a"
_SHOWN = 3.0, 97.0  # percent: points beyond lie outside the box
_FRUSTUM = 0.03  # depth of a camera, relative to the scene
_FAR = 1.9  # from where the box is looked at, relative to its size
_OUTLINE = [0, 1, 2, 0, 3, 4, 0, 2, 3, 0, 4, 1]  # one stroke over all edges of a frustum


def page(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """A whole HTML document.

    Args:
        title: plain text.
        lead: plain text below the title.
        sections: heading (plain text) and content (HTML) of each.
    """
    body = "".join(f"<h2>{escape(heading)}</h2>\n{content}\n" for heading, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1><p>{escape(lead)}</p>\n{body}</body></html>\n"
    )


def table(rows: Iterable[Sequence[object]]) -> str:
    """An HTML table of plain texts and numbers; numbers are aligned to the right."""
    return "<table>" + "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows) + "</table>"


def lines(texts: Iterable[str], warn: bool = False) -> str:
    """A list, a line for each of the texts; red if they `warn`."""
    return f"<ul{' class=warn' if warn else ''}>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def bars(seconds: Mapping[str, float]) -> str:
    """A horizontal bar for each stage, with its seconds."""
    longest = max(seconds.values(), default=0.0) or 1.0
    rows = [
        f"<tr><td>{escape(name)}</td><td class=number>{value:.1f} s</td>"
        f'<td class=bar><div style="width:{100 * value / longest:.1f}%"></div></td></tr>'
        for name, value in seconds.items()
    ]
    return f'<table style="width:100%">{"".join(rows)}</table>'


def picture(image: Image, caption: str) -> str:
    """An image (H, W, 3) RGB inside the page, with a caption below."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), quality)[1]
    text = base64.b64encode(data.tobytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/jpeg;base64,{text}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def scene_plot(scene: Scene) -> str:
    """Points and cameras to rotate and zoom, with plotly's own program in the page.

    Args:
        scene: thinned to what a browser can draw, some ten thousand points.
    """
    plotly, purpose = "plotly.graph_objects", "a report"
    objects, writer = need(plotly, purpose), need("plotly.io", purpose)
    x, y, z = scene.points.T
    lighter = (40 + 0.84 * scene.colours).astype(np.uint8)  # dark points would vanish in the night
    shades = [f"rgb({r},{g},{b})" for r, g, b in lighter.tolist()]
    cloud = objects.Scatter3d(
        x=x, y=y, z=z, mode="markers", marker={"size": 2, "color": shades}, hoverinfo="skip", name="points"
    )
    strokes = scene.frusta(_FRUSTUM * scene.extent)[:, _OUTLINE]  # (C, 12, 3)
    gaps = np.full((len(strokes), 1, 3), np.nan)
    path = np.concatenate([strokes, gaps], axis=1).reshape(-1, 3)
    labels = [name for name in scene.names for _ in range(strokes.shape[1] + 1)]
    cameras = objects.Scatter3d(
        x=path[:, 0],
        y=path[:, 1],
        z=path[:, 2],
        mode="lines",
        line={"color": "#ffb300", "width": 2},
        text=labels,
        hovertemplate="%{text}<extra></extra>",
        name="cameras",
    )
    figure = objects.Figure([cloud, cameras], layout=_layout(scene))
    return str(writer.to_html(figure, full_html=False, include_plotlyjs=True, default_height="640px"))


def _cell(value: object) -> str:
    number = isinstance(value, int | float)
    return f"<td{' class=number' if number else ''}>{escape(f'{value:,}' if number else str(value))}</td>"


def _layout(scene: Scene) -> dict[str, object]:
    """Nearly all that is there, with the ground below."""
    every = np.concatenate([scene.points, scene.centres])
    low, high = np.percentile(every, _SHOWN, axis=0) if len(every) else (np.zeros(3), np.ones(3))
    if len(scene.centres):
        cameras = scene.frusta(_FRUSTUM * scene.extent).reshape(-1, 3)  # whole: what lies outside is cut off
        low, high = np.minimum(low, cameras.min(axis=0)), np.maximum(high, cameras.max(axis=0))
    axis = {"visible": False}
    ranges = [{**axis, "range": [float(a), float(b)]} for a, b in zip(low, high, strict=True)]
    return {
        "scene": {
            **dict(zip(("xaxis", "yaxis", "zaxis"), ranges, strict=True)),
            "aspectmode": "data",
            "camera": {"up": _xyz(scene.up), "eye": _xyz(_FAR * scene.lookout)},
            "bgcolor": _NIGHT,
        },
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "legend": {"x": 0.01, "y": 0.99, "font": {"color": "white"}, "bgcolor": "rgba(0,0,0,0)"},
    }


def _xyz(vector: np.ndarray) -> dict[str, float]:
    return dict(zip("xyz", map(float, vector), strict=True))
