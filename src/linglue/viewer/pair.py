"""One pair of images and its matches in the browser, with a slider for their score."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linglue.errors import LinGlueError
from linglue.io.images import Image, read_image
from linglue.io.npz import load_matches
from linglue.viewer.page import EVERY, Page
from linglue.viz.matches import draw_matches

MARGIN = 1.4  # free around the picture; the panel covers some of it


class PairViewer(Page):
    """A server that shows the matches of one pair until it is closed.

    Args:
        file: of `linglue match -o`, .npz or .json.
        images: the two images, in the order in which they were matched; None: those that the file names.
        host: the address to listen on.
        port: 0 for any that is free.
    """

    def __init__(
        self, file: Path, images: Sequence[Path] | None = None, host: str = "127.0.0.1", port: int = 8080
    ) -> None:
        self.matches = load_matches(file)
        named = [image for image in (self.matches.image0, self.matches.image1) if isinstance(image, Path)]
        paths = named if images is None else images
        if len(paths) != 2:
            raise LinGlueError(f"{file}: names no images, expected them by --images A B")
        self.images = [read_image(path) for path in paths]
        for path, image, features in zip(
            paths, self.images, (self.matches.features0, self.matches.features1), strict=True
        ):
            if image.shape[1::-1] != tuple(features.image_size):
                raise LinGlueError(
                    f"{path}: is {image.shape[1]}x{image.shape[0]} pixels, expected the image that was matched, "
                    f"{features.image_size.width}x{features.image_size.height}"
                )
        super().__init__(host, port, f"LinGlue: {file.name}")
        gui = self.server.gui
        self._text = gui.add_markdown("")
        self._score = gui.add_slider("score at least", 0.0, 1.0, 0.01, 0.0)
        self._score.on_update(lambda _: self.draw())
        self.server.scene.set_up_direction("-y")
        self.server.scene.world_axes.visible = False
        self._wide = 1.0  # width of the picture, whose height is 1
        self.draw()
        self.server.on_client_connect(lambda client: _face(client.camera, self._wide))

    def run(self) -> None:
        """Until interrupted."""
        while True:
            time.sleep(EVERY)

    def draw(self) -> None:
        """Show the matches with the score of the slider or more."""
        picture = self.draw_matches()
        self._wide = picture.shape[1] / picture.shape[0]
        self.server.scene.add_image("/pair", picture, render_width=self._wide, render_height=1.0)
        shown = int((self.matches.scores >= self._score.value).sum())
        self._text.content = f"{shown} of {len(self.matches)} matches, pair score {self.matches.pair_score:.2f}"

    def draw_matches(self) -> Image:
        """The two images side by side, with the lines that are shown."""
        shown = self.matches.scores >= self._score.value
        return draw_matches(
            self.images[0],
            self.images[1],
            self.matches.points0[shown],
            self.matches.points1[shown],
            values=self.matches.scores[shown],
        )


def _face(camera: Any, wide: float) -> None:
    """Look at a picture, `wide` times its height 1, from where it fills the page."""
    half = np.tan(camera.fov / 2)  # of the height that is seen at distance 1
    camera.up_direction = (0.0, -1.0, 0.0)
    camera.position = (0.0, 0.0, -MARGIN * max(1.0, wide / camera.aspect) / (2 * half))
    camera.look_at = (0.0, 0.0, 0.0)
