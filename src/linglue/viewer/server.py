"""The page on which a reconstruction is looked at (viser, imported late): points, cameras, matches; read-only."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.geometry.pose import Pose
from linglue.io.images import Image
from linglue.viewer.contents import Contents, WorkContents, thumbnail
from linglue.viz.canvas import blend_dots, finish, lay_out
from linglue.viz.matches import draw_matches
from linglue.viz.scene import Scene

CAMERA, CHOSEN, QUERY, EDGE = (255, 179, 0), (255, 64, 64), (0, 200, 255), (0, 150, 136)
FRUSTUM = 0.03  # depth of a camera, relative to the scene
POINT = 0.0012  # size of a point, relative to the scene
SIDE = 320  # pixels of an image in its frustum
LARGE_SIDE = 1024  # pixels of an image in the panel
MAX_IMAGES = 300  # frusta with an image; more are too much for a browser
MAX_NAMES = 30  # listed without a pose
NONE = "-"  # no image is chosen
EVERY = 2.0  # seconds between two looks at the folder


class Page:
    """A page that a server shows until it is closed.

    Args:
        host: the address to listen on.
        port: 0 for any that is free.
        title: of the page.
    """

    def __init__(self, host: str, port: int, title: str) -> None:
        self.server = start_server(host, port, title)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{self.server.get_host()}:{self.server.get_port()}"

    def close(self) -> None:
        """Stop the server."""
        self.server.stop()


class Viewer(Page):
    """A server that shows the contents of a work folder until it is closed.

    Args:
        source: what is shown.
        host: the address to listen on; other than 127.0.0.1 lets others look, too.
        port: 0 for any that is free.

    Example:
        >>> Viewer(WorkContents(Workspace(Path("WORK")))).run()  # doctest: +SKIP
    """

    def __init__(self, source: WorkContents, host: str = "127.0.0.1", port: int = 8080) -> None:
        self.source = source
        self._lock = threading.RLock()  # viser calls back from threads of its own
        super().__init__(host, port, f"LinGlue: {source.work.folder.name}")
        self.version, self.contents = source.version(), source.read()
        self._handles: list[Any] = []
        self._build_panel()
        self._draw()
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
            self.version, self.contents = version, contents
            self._draw()
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
                number = scene.names.index(name)
                for client in self.server.get_clients().values():
                    _fly(client.camera, scene, number)
            self._picture.image = self._keypoints(name)
            self._chosen.content = f"**{name}**" + (
                "" if name in scene.names else f"  \nno pose: {self.contents.without_pose.get(name, 'unknown')}"
            )

    def choose_pair(self, name0: str, name1: str) -> None:
        """Show the matches of images name0 and name1, coloured by score."""
        with self._lock:
            if NONE in (name0, name1):
                return
            found = self.source.matches(name0, name1) if name0 != name1 else None
            if found is None or not {name0, name1} <= self.contents.paths.keys():
                self._pair_text.content = "no matches of this pair, or its images are gone"
                return
            image0, image1 = (thumbnail(self.contents.paths[name], LARGE_SIDE) for name in (name0, name1))
            sizes = [self._size(name) for name in (name0, name1)]
            scale0, scale1 = (image.shape[1] / size for image, size in zip((image0, image1), sizes, strict=True))
            self._pair_picture.image = draw_matches(
                image0, image1, found.points0 * scale0, found.points1 * scale1, values=found.scores
            )
            self._pair_text.content = f"{len(found.scores)} matches"

    def filter_points(self) -> int:
        """Show the points that are seen often and well enough; returns their number."""
        scene = self.contents.scene
        shown = (scene.tracks >= self._track.value) & (scene.errors <= self._error.value)
        size = POINT * scene.extent * self._size_of_points.value
        self.server.scene.add_point_cloud("/points", scene.points[shown], scene.colours[shown], point_size=size)
        return int(shown.sum())

    def _build_panel(self) -> None:
        gui = self.server.gui
        gui.configure_theme(dark_mode=True, control_layout="collapsible")
        self._text = gui.add_markdown("")
        with gui.add_folder("Points"):
            self._track = gui.add_slider("seen by at least", 2, 10, 1, 2)
            self._error = gui.add_slider("error up to, px", 0.1, 4.0, 0.1, 4.0)
            self._size_of_points = gui.add_slider("size", 0.2, 5.0, 0.1, 1.0)
        with gui.add_folder("Cameras"):
            self._graph = gui.add_checkbox("match graph", False)
            self._names = gui.add_dropdown("image", (NONE,))
            self._chosen = gui.add_markdown("")
            self._picture = gui.add_image(np.zeros((9, 16, 3), np.uint8))
        with gui.add_folder("Two images"):
            self._pair = [gui.add_dropdown(label, (NONE,)) for label in ("first", "second")]
            self._pair_text = gui.add_markdown("")
            self._pair_picture = gui.add_image(np.zeros((9, 16, 3), np.uint8))
        for handle in (self._track, self._error, self._size_of_points):
            handle.on_update(self._called(self.filter_points))
        self._graph.on_update(self._called(self._draw_graph))
        self._names.on_update(self._called(lambda: self.choose(self._names.value)))
        for handle in self._pair:
            handle.on_update(self._called(lambda: self.choose_pair(*(part.value for part in self._pair))))

    def _welcome(self, client: Any) -> None:
        if self.contents.scene.names:
            _fly(client.camera, self.contents.scene, None)

    def _called(self, action: Callable[[], object]) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            with self._lock:
                action()

        return callback

    def _draw(self) -> None:
        """Everything anew; the view stays where it is."""
        contents, scene = self.contents, self.contents.scene
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.server.scene.set_up_direction(tuple(scene.up))
        self.filter_points()
        for number, name in enumerate(scene.names):
            self._handles.append(self._frustum(number, name))
        for name, pose in contents.queries.items():
            self._handles.append(_query(self.server, name, pose, FRUSTUM * scene.extent))
        self._draw_graph()
        self._text.content = describe(contents)
        for handle in (self._names, *self._pair):
            handle.options = (NONE, *scene.names, *sorted(contents.without_pose))

    def _frustum(self, number: int, name: str) -> Any:
        scene, path = self.contents.scene, self.contents.paths.get(name)
        image = thumbnail(path, SIDE) if path is not None and len(scene.names) <= MAX_IMAGES else None
        width, height = scene.reach[number]
        handle = self.server.scene.add_camera_frustum(
            f"/cameras/{number}",
            fov=2 * float(np.arctan(height)),
            aspect=float(width / height),
            scale=FRUSTUM * scene.extent,
            color=CAMERA,
            image=image,
            wxyz=_wxyz(scene.rotations[number].T),
            position=scene.centres[number],
        )

        @handle.on_click
        def _(_: Any) -> None:
            self._names.value = name  # whose callback flies there
            self.choose(name)

        return handle

    def _draw_graph(self) -> None:
        """Lines between the cameras of matched images."""
        scene = self.contents.scene
        place = dict(zip(scene.names, scene.centres, strict=True))
        ends = [[place[a], place[b]] for a, b in self.contents.matched if a in place and b in place]
        if ends and self._graph.value:
            self.server.scene.add_line_segments("/graph", np.array(ends), EDGE, line_width=1.5)
        else:
            self.server.scene.remove_by_name("/graph")

    def _keypoints(self, name: str) -> Image:
        path = self.contents.paths.get(name)
        if path is None:
            return np.zeros((9, 16, 3), np.uint8)
        image = thumbnail(path, LARGE_SIDE)
        points, in_model = self.source.keypoints(name)
        canvas, (place,) = lay_out([image])
        colours = np.where(in_model[:, None], (60.0, 220.0, 60.0), (230.0, 60.0, 60.0))
        order = np.argsort(in_model, kind="stable")  # those of the model on top
        blend_dots(canvas, place.points(points * (image.shape[1] / self._size(name)))[order], 2.0, colours[order])
        return finish(canvas, [f"{int(in_model.sum())} of {len(points)} keypoints in the model"])

    def _size(self, name: str) -> int:
        with self.source.work.features() as features:
            return features.sizes()[name].width


def start_server(host: str, port: int, label: str) -> Any:
    """A viser server that listens at host and port under a label; a port in use is an error."""
    if not 0 <= port <= 65535:
        raise LinGlueError(f"port is {port}, expected 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            port = probe.getsockname()[1]
        except OSError as error:
            raise LinGlueError(
                f"{host}:{port}: cannot be listened on ({error.strerror}), expected a free port"
            ) from error
    return need("viser", "the viewer").ViserServer(host=host, port=port, label=label, verbose=False)


def describe(contents: Contents) -> str:
    """The text of the panel, in Markdown."""
    scene = contents.scene
    text = [f"{len(scene.names)} images with a pose, {len(scene.points):,} points, {len(contents.matched)} pairs"]
    if contents.queries:
        text.append(f"{len(contents.queries)} localized images (blue)")
    missing = list(contents.without_pose.items())
    if missing:
        listed = "\n".join(f"- {name}: {reason}" for name, reason in missing[:MAX_NAMES])
        more = f"\n- and {len(missing) - MAX_NAMES} more" if len(missing) > MAX_NAMES else ""
        text.append(f"without a pose:\n{listed}{more}")
    return "\n\n".join(text)


def _fly(camera: Any, scene: Scene, number: int | None) -> None:
    """Look through the camera of an image, or from behind all of them."""
    forward = scene.rotations[:, 2].mean(axis=0) if number is None else scene.rotations[number, 2]
    start = scene.centres.mean(axis=0) if number is None else scene.centres[number]
    back = 0.28 * scene.extent if number is None else 0.05 * scene.extent
    camera.up_direction = scene.up if number is None else -scene.rotations[number, 1]
    camera.position = start - back * forward + (0.12 * scene.extent * scene.up if number is None else 0)
    camera.look_at = start + 0.3 * scene.extent * forward


def _query(server: Any, name: str, pose: Pose, size: float) -> Any:
    return server.scene.add_camera_frustum(
        f"/queries/{name}",
        fov=0.9,
        aspect=1.33,
        scale=size,
        color=QUERY,
        wxyz=_wxyz(pose.rotation.T),
        position=pose.centre,
    )


def _wxyz(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quaternion of a rotation as viser orders it."""
    return np.roll(Rotation.from_matrix(np.array(rotation)).as_quat(), 1)
