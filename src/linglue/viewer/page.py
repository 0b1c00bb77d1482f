"""A page for a browser that serves itself and nothing else (viser, imported late)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from linglue.core.optional import need
from linglue.errors import LinGlueError

EVERY = 2.0  # seconds between two looks at what is shown


class Page:
    """A page that a server shows until it is closed.

    Args:
        host: the address to listen on.
        port: 0 for any that is free.
        title: of the page.
    """

    def __init__(self, host: str, port: int, title: str) -> None:
        self.server = start_server(host, port, title)
        self.server.gui.configure_theme(
            dark_mode=True, control_layout="collapsible", control_width="large", show_share_button=False
        )

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{self.server.get_host()}:{self.server.get_port()}"

    def close(self) -> None:
        """Stop the server."""
        self.server.stop()


def start_server(host: str, port: int, label: str) -> Any:
    """A viser server that listens at host and port under a label; a port in use is an error.

    It gives out no files but those of the page, answers no pages of other sites, and cannot be asked to share the page
    through the server of viser's makers.
    """
    viser = need("viser", "the viewer")
    port = _free(host, port)
    with _page_only() as guarded:
        server = viser.ViserServer(host=host, port=port, label=label, verbose=False)
    if not guarded:
        server.stop()
        raise LinGlueError(f"viser {viser.__version__} cannot be made to serve its page only, expected another one")
    server.request_share_url = lambda *_, **__: None  # a visitor's message would open a tunnel to everybody
    return server


def silence() -> None:
    """For programs whose output is their own: viser prints frames and farewells by way of rich's one console."""
    need("viser", "the viewer")
    need("rich", "the viewer").get_console().quiet = True


def _free(host: str, port: int) -> int:
    """The port, or a free one for 0."""
    if not 0 <= port <= 65535:
        raise LinGlueError(f"port is {port}, expected 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return int(probe.getsockname()[1])
        except OSError as error:
            wrong = f"{host}:{port}: cannot be listened on ({error.strerror})"
            raise LinGlueError(f"{wrong}, expected an address of this machine and a free port") from error


@contextmanager
def _page_only() -> Iterator[list[bool]]:
    """Servers of websockets that start meanwhile look at requests before viser does, which follows any `..`.

    Yields:
        what is no longer empty once there is such a server.
    """
    from websockets.asyncio import server as websockets

    serve, guarded = websockets.serve, []

    def serve_guarded(*arguments: Any, process_request: Callable[..., Any], **options: Any) -> Any:
        def answer(connection: Any, request: Any) -> Any:
            if not allowed(request.path, request.headers.get("Origin"), request.headers.get("Host")):
                return connection.respond(HTTPStatus.FORBIDDEN, "only the page is served\n")
            return process_request(connection, request)

        guarded.append(True)
        return serve(*arguments, process_request=answer, **options)

    websockets.serve = serve_guarded  # type: ignore[assignment]
    try:
        yield guarded
    finally:
        websockets.serve = serve


def allowed(path: str, origin: str | None, host: str | None) -> bool:
    """Whether a request stays below the folder of the page, and does not come from the page of another site.

    Args:
        path: that is asked for.
        origin: of the page that asks, if a browser told it.
        host: under which the request reached us.

    Example:
        >>> allowed("/index.html", None, "127.0.0.1:8080"), allowed("/../../etc/passwd", None, "127.0.0.1:8080")
        (True, False)
        >>> allowed("/", "https://example.com", "127.0.0.1:8080")
        False
    """
    parts = PurePosixPath(path.partition("?")[0].replace("\\", "/")).parts
    return ".." not in parts and (origin is None or urlsplit(origin).netloc == host)
