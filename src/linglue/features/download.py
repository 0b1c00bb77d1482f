"""Weights files from the network, only when a user asks: checked by their SHA-256, atomic, resumable."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tqdm import tqdm

from linglue.core.fingerprint import file_sha256
from linglue.core.lock import locked
from linglue.errors import LinGlueError
from linglue.features.registry import Download, FrontEnd
from linglue.features.weights import cache_folder

CHUNK = 1 << 18  # bytes read at a time
PATIENCE = 30  # seconds without an answer


def fetch_weights(front_end: FrontEnd, accept_terms: bool = False) -> Path:
    """The weights file of a front-end in torch's cache; downloaded unless it is there already.

    A download that was interrupted resumes. Nothing appears under the file's name before its SHA-256 is right.

    Args:
        front_end: one with a `download`.
        accept_terms: the user accepts the terms of the file, where it has any.

    Raises:
        LinGlueError: nothing to download, terms not accepted, no connection, wrong content; one line.
    """
    download = front_end.download
    if download is None:
        raise LinGlueError(f"front-end {front_end.name} has no weights to fetch, it works without")
    path = cache_folder() / download.file
    if path.is_file() and file_sha256(path) == download.sha256:
        return path
    if download.terms and not accept_terms:
        raise LinGlueError(f"{download.file} was not fetched: its terms must be accepted with --accept-licence")
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, wait=False):
        _download(download, path)
    return path


def _download(download: Download, path: Path) -> None:
    partial = path.with_name(f"{path.name}.part")
    try:
        _receive(download.url, partial)
    except urllib.error.HTTPError as error:
        answer = f"{error.code} {error.reason}"
        raise LinGlueError(f"{download.url}: the server answered {answer}, expected the file") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise LinGlueError(
            f"{download.url}: cannot be fetched ({reason}); the same command resumes once there is a connection"
        ) from error
    found = file_sha256(partial)
    if found != download.sha256:
        partial.unlink()
        raise LinGlueError(f"{download.url}: its SHA-256 is {found}, expected {download.sha256}; nothing was kept")
    partial.replace(path)


def _receive(url: str, partial: Path) -> None:
    """Append to the partial file what it lacks."""
    have = partial.stat().st_size if partial.is_file() else 0
    opener = urllib.request.build_opener(_SafeRedirect)
    try:
        answer = opener.open(_request(url, have), timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        return  # all of it is there, or something else is: its SHA-256 tells
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:  # the server sends all of it
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=partial.stem, disable=None)
        with bar, partial.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and partial.stat().st_size < total:
            raise http.client.IncompleteRead(b"", total - partial.stat().st_size)


def _request(url: str, start: int = 0) -> urllib.request.Request:
    """A request for the rest of a file; HTTPS, or from this very machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname == "127.0.0.1"):
        raise LinGlueError(f"{url}: not encrypted, expected an https address")
    return urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows the server elsewhere only if the address there is as safe."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        _request(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
