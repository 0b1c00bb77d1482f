"""The page on which a reconstruction is looked at (viser, imported late): points, cameras, matches; read-only."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from linglue.errors import LinGlueError
from linglue.io.images import Image
from linglue.viewer.contents import Contents, WorkContents, thumbnail
from linglue.viewer.draw import EDGE, draw_cameras, draw_queries, graph_edges, look_through, overview
from linglue.viewer.page import EVERY, Page
from linglue.viz.canvas import blend_dots, finish, lay_out
from linglue.viz.matches import draw_matches

POINT = 0.003  # size of a point, relative to the scene
LARGE_SIDE = 1024  # pixels of an image in the panel
MAX_NAMES = 30  # listed without a pose
NONE = "-"  # no image is chosen
NOTHING = np.zeros((9, 16, 3), np.uint8)  # in the place of an image


class Viewer(Page):
    """A server that shows the contents of a work folder until it is closed.

    Args:
        source: what is shown.
        host: the address to listen on; other than 127.0.0.1 lets others look, too.
        port: 0 for any that is free.

    Example:
        >>> Viewer(WorkContents(Path("WORK"))).run()  # doctest: +SKIP
    """

    def __init__(self, source: WorkContents, host: str = "127.0.0.1", port: int = 8080) -> None:
        self.source = source
        self._lock = threading.RLock()  # viser calls back from threads of its own
        self.version, self.contents = source.version(), source.read()
        super().__init__(host, port, f"LinGlue: {source.work.folder.resolve().name}")
        self._handles: list[Any] = []  # of what stands in the space, but for points and graph
        self._build_panel()
        self._draw_scene()
        self._draw_rest()
        self.server.on_client_connect(self._welcome)

    def refresh(self) -> bool:
        """Show what is new in the folder; returns whether there was anything."""
        version = self.source.version()
        if version == self.version:
            return False
        try:
            contents = self.source.read()
        except LinGlueError:  # the model is being replaced right now: next time
            return False
        with self._lock:
            before, self.version, self.contents = self.contents, version, contents
            if contents.scene is not before.scene or contents.queries is not before.queries:
                self._draw_scene()
            if contents.scene.names and not before.scene.names:
                self._show_all()
            self._draw_rest()
        return True

    def run(self) -> None:
        """Show changes as they come, until interrupted."""
        while True:
            time.sleep(EVERY)
            self.refresh()

    def choose(self, name: str) -> None:
        """Fly to the camera of an image and show its keypoints: green ones are points of the model, red ones not."""
        with self._lock:
            scene = self.contents.scene
            if name not in scene.names and name not in self.contents.without_pose:
                return
            if name in scene.names:
                for client in self.server.get_clients().values():
                    look_through(client.camera, scene, scene.names.index(name))
            self._picture.image, self._picture.visible = self._keypoints(name), True
            reason = self.contents.without_pose.get(name)
            self._chosen.content = f"**{plain(name)}**" + ("" if reason is None else f"  \nno pose: {plain(reason)}")

    def choose_pair(self, name0: str, name1: str) -> None:
        """Show the matches of images name0 and name1 with the score of the slider or more, coloured by score."""
        with self._lock:
            if NONE in (name0, name1):
                return
            found = self.source.matches(name0, name1) if name0 != name1 else None
            image0, image1 = self._image(name0), self._image(name1)
            self._pair_picture.visible = found is not None and image0 is not None and image1 is not None
            if found is None or image0 is None or image1 is None:
                self._pair_text.content = "no matches of this pair, or its images are gone"
                return
            shown = found.scores >= self._score.value
            points0 = found.points0[shown] * (image0.shape[1] / self._width(name0))
            points1 = found.points1[shown] * (image1.shape[1] / self._width(name1))
            self._pair_picture.image = draw_matches(image0, image1, points0, points1, values=found.scores[shown])
            self._pair_text.content = f"{shown.sum()} of {len(shown)} matches"

    def filter_points(self) -> int:
        """Show the points that are seen often and well enough; returns their number."""
        scene = self.contents.scene
        shown = (scene.tracks >= self._track.value) & (scene.errors <= self._error.value)
        size = POINT * scene.extent * self._size_of_points.value
        self.server.scene.add_point_cloud("/points", scene.points[shown], scene.colours[shown], point_size=size)
        return int(shown.sum())

    def _build_panel(self) -> None:
        gui = self.server.gui
        self._text = gui.add_markdown("")
        with gui.add_folder("Points"):
            self._track = gui.add_slider("seen by at least", 2, 10, 1, 2)
            self._error = gui.add_slider("error up to, px", 0.1, 4.0, 0.1, 4.0)
            self._size_of_points = gui.add_slider("size", 0.2, 5.0, 0.1, 1.0)
        with gui.add_folder("Cameras"):
            self._graph = gui.add_checkbox("match graph", False)
            self._names = gui.add_dropdown("image", (NONE,))
            self._chosen = gui.add_markdown("")
            self._picture = gui.add_image(NOTHING, visible=False)
        with gui.add_folder("Two images"):
            self._pair = [gui.add_dropdown(label, (NONE,)) for label in ("first", "second")]
            self._score = gui.add_slider("score at least", 0.0, 1.0, 0.01, 0.0)
            self._pair_text = gui.add_markdown("")
            self._pair_picture = gui.add_image(NOTHING, visible=False)
        for handle in (self._track, self._error, self._size_of_points):
            handle.on_update(self._called(self.filter_points))
        self._graph.on_update(self._called(self._draw_graph))
        self._names.on_update(self._called(lambda: self.choose(self._names.value)))
        for handle in (*self._pair, self._score):
            handle.on_update(self._called(lambda: self.choose_pair(*(part.value for part in self._pair))))

    def _welcome(self, client: Any) -> None:
        if self.contents.scene.names:
            client.camera.up_direction = self.contents.scene.up
            client.camera.position, client.camera.look_at = overview(self.contents.scene)

    def _show_all(self) -> None:
        for client in self.server.get_clients().values():
            self._welcome(client)

    def _called(self, action: Callable[[], object]) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            with self._lock:
                action()

        return callback

    def _draw_scene(self) -> None:
        """Points and cameras anew; the view stays where it is."""
        scene = self.contents.scene
        for handle in self._handles:
            handle.remove()
        self.server.scene.set_up_direction(tuple(scene.up))
        self.filter_points()
        self._handles = draw_cameras(self.server, scene, self.contents.paths, self._click)
        self._handles += draw_queries(self.server, self.contents.queries, scene)

    def _click(self, name: str) -> None:
        again = self._names.value == name
        self._names.value = name  # whose callback chooses it
        if again:
            self.choose(name)

    def _draw_rest(self) -> None:
        """The match graph and the panel."""
        self._draw_graph()
        self._text.content = describe(self.contents)
        names = (NONE, *self.contents.scene.names, *sorted(self.contents.without_pose))
        for handle in (self._names, *self._pair):
            if handle.options != names:
                handle.options = names

    def _draw_graph(self) -> None:
        """Lines between the cameras of matched images."""
        edges = graph_edges(self.contents.scene, self.contents.matched) if self._graph.value else ()
        if len(edges):
            self.server.scene.add_line_segments("/graph", edges, EDGE, line_width=1.5)
        else:
            self.server.scene.remove_by_name("/graph")

    def _keypoints(self, name: str) -> Image:
        image = self._image(name)
        if image is None:
            return NOTHING
        points, in_model = self.source.keypoints(name)
        canvas, (place,) = lay_out([image])
        colours = np.where(in_model[:, None], (60.0, 220.0, 60.0), (230.0, 60.0, 60.0))
        order = np.argsort(in_model, kind="stable")  # those of the model on top
        blend_dots(canvas, place.points(points * (image.shape[1] / self._width(name)))[order], 2.0, colours[order])
        return finish(canvas, [f"{int(in_model.sum())} of {len(points)} keypoints in the model"])

    def _image(self, name: str) -> Image | None:
        """The image for the panel; None if it is gone, or damaged since."""
        try:
            return thumbnail(self.contents.paths[name], LARGE_SIDE)
        except (KeyError, LinGlueError):
            return None

    def _width(self, name: str) -> int:
        """In pixels, of the image as it was extracted."""
        with self.source.work.features() as features:
            return features.sizes()[name].width


def describe(contents: Contents) -> str:
    """The text of the panel, in Markdown."""
    scene = contents.scene
    text = [f"{len(scene.names):,} images with a pose, {len(scene.points):,} points, {len(contents.matched):,} pairs"]
    if contents.queries:
        text.append(f"{len(contents.queries)} localized images (blue)")
    missing = list(contents.without_pose.items())
    if missing:
        listed = "\n".join(f"- {plain(name)}: {plain(reason)}" for name, reason in missing[:MAX_NAMES])
        more = f"\n- and {len(missing) - MAX_NAMES} more" if len(missing) > MAX_NAMES else ""
        text.append(f"without a pose:\n{listed}{more}")
    return "\n\n".join(text)


def plain(text: str) -> str:
    r"""Markdown that shows a text as it is: names of files may contain anything, and viser runs what is in braces.

    Args:
        text: on one line.

    Example:
        >>> print(plain("a_b {c}.png"))
        a\_b \{c\}\.png
    """
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
