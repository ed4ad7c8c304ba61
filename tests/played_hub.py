"""A small model hub that answers what the hub's own client asks: revisions, files, ranges, refusals.

It holds one repository at one commit. As the real hub does it sends whoever asks for a large file
on to another place, where it is served by ranges. A test says what goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_blob(body: bytes) -> str:
    """Return the checksum that git gives a file."""
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()


def safetensors(length: int) -> bytes:
    """Return a whole file of safetensors with one tensor of so many bytes."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}})
    body = random.Random(length).randbytes(length)
    return len(header).to_bytes(8, "little") + header.encode() + body


@dataclass
class Hub:
    """What the hub holds, what goes wrong, and what it was asked."""

    repo: str
    files: dict[str, bytes]
    token: str | None = None  # who does not send it is told that the model is gated
    cuts: dict[str, list[int]] = field(default_factory=dict)  # path -> bytes after which it breaks
    status: int | None = None  # answers everything with it
    error: str | None = None  # X-Error-Code of that answer
    changed: dict[str, bytes] = field(default_factory=dict)  # path -> what it sends instead
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    tokens: set[str | None] = field(default_factory=set)  # Authorization headers that came
    host: str = ""
    apart: str = ""  # HOST:PORT by which it sends on whoever asks for a large file; "" is its own
    tokens_apart: set[str | None] = field(default_factory=set)  # Authorization headers there
    most_at_once: int = 0

    def is_large(self, path: str) -> bool:
        """Whether a file is kept apart, as those in LFS are."""
        return path.endswith(".safetensors")

    def listed(self) -> list[list[Any]]:
        """Return the files as a lock has them: path, bytes, SHA-256 or git blob."""
        return [
            [path, len(body), hashlib.sha256(body).hexdigest(), None]
            if self.is_large(path)
            else [path, len(body), None, git_blob(body)]
            for path, body in sorted(self.files.items())
        ]

    def ranges(self, path: str) -> list[str | None]:
        """Return the Range of each request for a file that was served, in order."""
        end = f"/resolve/{COMMIT}/{path}" if not self.is_large(path) else f"/cdn/{path}"
        return [asked for _, place, asked in self.asked if place.endswith(end)]

    def info(self) -> dict[str, Any]:
        """Return what the hub's API says of the model."""
        siblings: list[dict[str, Any]] = []
        for path, length, sha256, blob in self.listed():
            one = {"rfilename": path, "size": length, "blobId": blob or "a" * 40}
            if sha256:
                one["lfs"] = {"size": length, "sha256": sha256, "pointerSize": 130}
            siblings.append(one)
        return {"id": self.repo, "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    lock = threading.Lock()
    running = 0

    def do_GET(self) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        authorization = self.headers.get("Authorization")
        hub.tokens.add(authorization)
        if hub.status is not None:
            self._refuse(hub.status, hub.error)
        elif path.startswith(f"/api/models/{hub.repo}"):
            self._send(json.dumps(hub.info()).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/cdn/"):
            hub.tokens_apart.add(authorization)
            self._file(path.removeprefix("/cdn/"))
        elif not path.startswith(f"/{hub.repo}/resolve/"):
            self._refuse(404, "RepoNotFound")
        elif hub.token is not None and authorization != f"Bearer {hub.token}":
            self._refuse(401 if authorization is None else 403, "GatedRepo")
        else:
            revision, _, name = path.removeprefix(f"/{hub.repo}/resolve/").partition("/")
            if revision != COMMIT:
                self._refuse(404, "RevisionNotFound")
            elif name not in hub.files:
                self._refuse(404, "EntryNotFound")
            elif hub.is_large(name):
                self.send_response(302)
                self.send_header("Location", f"http://{hub.apart or hub.host}/cdn/{name}")
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._file(name)

    do_HEAD = do_GET

    def _refuse(self, status: int, code: str | None) -> None:
        self._send(b"", {"X-Error-Code": code} if code else {}, status)

    def _send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, name: str) -> None:
        body = self.hub.changed.get(name, self.hub.files[name])
        start, status = 0, 200
        asked = self.headers.get("Range")
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        if asked:
            start, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        rest = body[start:]
        cuts = self.hub.cuts.get(name, [])
        with self.lock:
            type(self).running += 1
            self.hub.most_at_once = max(self.hub.most_at_once, self.running)
        try:
            if cuts and self.command != "HEAD":
                self._send(
                    rest[: cuts.pop(0)], {**headers, "Content-Length": str(len(rest))}, status
                )
                self.close_connection = True
            else:
                self._send(rest, headers, status)
        finally:
            with self.lock:
                type(self).running -= 1

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def serving(hub: Hub, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve a hub on a free port of an address; give its endpoint."""
    handler = type("Handler", (_Handler,), {"hub": hub, "lock": threading.Lock(), "running": 0})
    server = _Server((address, 0), handler)
    hub.host = f"{address}:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://{hub.host}"
    finally:
        server.shutdown()
        server.server_close()
