"""One pair of images and its matches in the browser, with a slider for their score."""

from __future__ import annotations

import time
from pathlib import Path

from linglue.errors import LinGlueError
from linglue.io.images import Image, read_image
from linglue.io.npz import load_matches
from linglue.viewer.server import EVERY, Page
from linglue.viz.matches import draw_matches


class PairViewer(Page):
    """A server that shows the matches of one pair until it is closed.

    Args:
        file: of `linglue match -o`, .npz or .json.
        images: the two images, in the order in which they were matched.
        host: the address to listen on.
        port: 0 for any that is free.
    """

    def __init__(self, file: Path, images: tuple[Path, Path], host: str = "127.0.0.1", port: int = 8080) -> None:
        self.matches = load_matches(file)
        self.images = [read_image(path) for path in images]
        for path, image, features in zip(
            images, self.images, (self.matches.features0, self.matches.features1), strict=True
        ):
            if image.shape[1::-1] != tuple(features.image_size):
                raise LinGlueError(
                    f"{path}: is {image.shape[1]}x{image.shape[0]} pixels, expected the image that was matched, "
                    f"{features.image_size.width}x{features.image_size.height}"
                )
        super().__init__(host, port, f"LinGlue: {file.name}")
        gui = self.server.gui
        gui.configure_theme(dark_mode=True, control_layout="fixed", control_width="large")
        self._text = gui.add_markdown("")
        self._score = gui.add_slider("score at least", 0.0, 1.0, 0.01, 0.0)
        self._score.on_update(lambda _: self.draw())
        self._picture = gui.add_image(self.draw_matches())
        self.draw()

    def run(self) -> None:
        """Until interrupted."""
        while True:
            time.sleep(EVERY)

    def draw(self) -> None:
        """Show the matches with the score of the slider or more, on the page and behind everything."""
        picture = self.draw_matches()
        self._picture.image = picture
        self.server.scene.set_background_image(picture)
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
