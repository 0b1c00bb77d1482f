"""The page serves itself and nothing else: no file of this machine, no page of another site, no tunnel."""

import http.client
import subprocess
import sys

import pytest

from linglue.viewer.page import Page, allowed

viser = pytest.importorskip("viser")


@pytest.fixture
def page():
    shown = Page("127.0.0.1", 0, "a page")
    yield shown
    shown.close()


def answer(page: Page, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.get_port(), timeout=60)
    try:
        connection.request("GET", path, headers=headers)  # as it is: nothing resolves the dots
        found = connection.getresponse()
        return found.status, found.read()
    finally:
        connection.close()


def test_the_page_is_served(page):
    status, content = answer(page, "/")
    assert status == 200 and b"<html" in content


@pytest.mark.parametrize("path", ["/{}etc/passwd", "/assets/{}etc/passwd", "/{}etc/passwd?x", "/./{}etc/passwd"])
def test_no_other_file_is_served(page, path):
    status, content = answer(page, path.format("../" * 30))
    assert status == 403 and b"root" not in content


def test_pages_of_other_sites_get_nothing(page):
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert answer(page, "/", Origin="https://example.com", **upgrade)[0] == 403
    client = pytest.importorskip("websockets.sync.client")
    with client.connect(page.address.replace("http", "ws"), origin=page.address):
        pass


def test_what_is_allowed():
    assert allowed("/assets/a..b.js?x=..", "http://localhost:8080", "localhost:8080")
    assert not allowed("/..\\..\\secret", None, "localhost:8080")
    assert not allowed("/", "null", "localhost:8080")


def test_a_visitor_cannot_share_the_page(page, monkeypatch):
    def tunnel(*_):
        raise AssertionError("a tunnel was opened")

    monkeypatch.setattr("viser._viser.ViserTunnel", tunnel)
    assert page.server.request_share_url() is None


def test_a_viser_that_cannot_be_guarded_is_refused(monkeypatch):
    from linglue.errors import LinGlueError

    class Other:
        def __init__(self, **_):
            self.stopped = False

        def stop(self):
            self.stopped = True

    monkeypatch.setattr(viser, "ViserServer", Other)
    with pytest.raises(LinGlueError, match="cannot be made to serve its page only"):
        Page("127.0.0.1", 0, "a page")


def test_the_command_prints_its_own_lines_only(reconstruction):
    command = [sys.executable, "-m", "linglue", "view", str(reconstruction), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        process.terminate()
        rest = process.communicate(timeout=60)[0]
    assert first.startswith('{"address": "http://127.0.0.1:') and rest == ""
