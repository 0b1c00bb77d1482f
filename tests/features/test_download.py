"""Fetching weights from a server on this machine: whole, interrupted, wrong, refused, unreachable."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from linglue.cli import main
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS, FrontEnd, registry
from linglue.features.download import fetch_weights

CONTENT = np.random.default_rng(0).bytes(1_500_000)


class Server(HTTPServer):
    """Remembers what it was asked for; `cut` ends the next answer after that many bytes, `ranges` allows parts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.cut: int | None = None
        self.ranges = True


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT."""

    server: Server

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "http://example.com/weights.pth")
            self.end_headers()
            return
        start = 0
        if server.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if self.path != "/weights.pth" or start >= len(CONTENT):
            self.send_error(404 if start < len(CONTENT) else 416)
            return
        self.send_response(206 if start else 200)
        body = CONTENT[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, server.cut = server.cut, None
        self.wfile.write(body[:cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("TORCH_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torch" / "hub" / "checkpoints"


@pytest.fixture
def aliked(server, cache, monkeypatch) -> FrontEnd:
    """The facts of aliked with an address on this machine; the command sees them, too."""
    known = FRONT_ENDS["aliked"].download
    assert known is not None
    download = replace(
        known,
        url=f"http://127.0.0.1:{server.server_port}/weights.pth",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    facts = replace(FRONT_ENDS["aliked"], download=download)
    monkeypatch.setitem(FRONT_ENDS, "aliked", facts)
    return facts


def files(cache) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}


def changed(facts, **changes):
    return replace(facts, download=replace(facts.download, **changes))


def test_a_file_arrives_whole_and_only_once(aliked, server, cache):
    path = fetch_weights(aliked)
    assert path == cache / "aliked-n16.pth" and path.read_bytes() == CONTENT
    assert fetch_weights(aliked) == path
    assert server.asked == [None] and files(cache) == {"aliked-n16.pth"}


def test_weights_in_torchs_cache_are_found_without_asking_anyone(aliked, server, cache):
    cache.mkdir(parents=True)
    (cache / "aliked-n16.pth").write_bytes(CONTENT)
    assert fetch_weights(aliked) == cache / "aliked-n16.pth" and not server.asked


def test_an_interrupted_download_resumes(aliked, server, cache):
    server.cut = 700_000
    with pytest.raises(LinGlueError, match="resumes"):
        fetch_weights(aliked)
    assert files(cache) == {"aliked-n16.pth.part"}
    assert fetch_weights(aliked).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=700000-"] and files(cache) == {"aliked-n16.pth"}


def test_a_server_without_ranges_sends_all_again(aliked, server, cache):
    server.cut, server.ranges = 700_000, False
    with pytest.raises(LinGlueError, match="resumes"):
        fetch_weights(aliked)
    assert fetch_weights(aliked).read_bytes() == CONTENT


def test_a_process_killed_after_the_last_byte_has_all(aliked, server, cache):
    cache.mkdir(parents=True)
    (cache / "aliked-n16.pth.part").write_bytes(CONTENT)
    assert fetch_weights(aliked).read_bytes() == CONTENT


def test_wrong_content_is_not_kept(aliked, server, cache):
    with pytest.raises(LinGlueError, match=f"SHA-256 is {hashlib.sha256(CONTENT).hexdigest()}, expected 000") as caught:
        fetch_weights(changed(aliked, sha256="0" * 64))
    assert not files(cache) and "\n" not in str(caught.value)


def test_damaged_beginnings_do_not_stay_in_the_way(aliked, server, cache):
    cache.mkdir(parents=True)
    (cache / "aliked-n16.pth.part").write_bytes(b"x" * 1000)
    with pytest.raises(LinGlueError, match="SHA-256"):
        fetch_weights(aliked)
    assert fetch_weights(aliked).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:{port}/absent.pth", "answered 404"),
        ("http://127.0.0.1:{port}/moved", "http://example.com/weights.pth: not encrypted, expected an https"),
        ("http://example.com/weights.pth", "not encrypted, expected an https"),
        ("file:///etc/passwd", "not encrypted, expected an https"),
        ("http://127.0.0.1:1/weights.pth", "cannot be fetched .*refused"),
        ("https://no-such-host.invalid/weights.pth", "cannot be fetched"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_one_line(aliked, server, cache, address, says):
    with pytest.raises(LinGlueError, match=says) as caught:
        fetch_weights(changed(aliked, url=address.format(port=server.server_port)))
    assert "\n" not in str(caught.value) and not files(cache)


def test_two_processes_do_not_write_into_each_other(aliked, server, cache):
    cache.mkdir(parents=True)
    with FileLock(cache / ".linglue-aliked-n16.pth.lock"), pytest.raises(LinGlueError, match="another process"):
        fetch_weights(aliked)


def test_the_command_fetches_and_lists(aliked, cache, capsys):
    assert main(["models", "--fetch", "aliked", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == str(cache / "aliked-n16.pth")
    assert main(["models"]) == 0
    assert f"found     {cache / 'aliked-n16.pth'}" in capsys.readouterr().out


def test_terms_are_shown_and_must_be_accepted(aliked, server, cache, capsys, monkeypatch):
    superpoint = FRONT_ENDS["superpoint"]
    local = replace(aliked.download, file="superpoint_v1.pth", terms=superpoint.download.terms)
    monkeypatch.setitem(FRONT_ENDS, "superpoint", replace(superpoint, download=local))
    assert main(["models", "--fetch", "superpoint"]) == 1
    said = capsys.readouterr()
    assert "non-commercial" in said.out and said.err.count("\n") == 1 and "--accept-licence" in said.err
    assert not server.asked
    assert main(["models", "--fetch", "superpoint", "--accept-licence"]) == 0
    assert "non-commercial" in capsys.readouterr().out
    assert (cache / "superpoint_v1.pth").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "says"), [("surf", "--fetch is 'surf', expected linpoint"), ("sift", "works without")]
)
def test_nothing_to_fetch(name, says, capsys):
    assert main(["models", "--fetch", name]) == 1
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_published_files_are_named_by_safe_addresses():
    for facts in registry.FRONT_ENDS.values():
        if facts.download is not None:
            assert (
                facts.download.url.startswith("https://raw.githubusercontent.com/") and len(facts.download.sha256) == 64
            )
            assert facts.download.file in facts.weights_source
