"""A server that asks for a key, for the programs that must send it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def door(key: str) -> Iterator[int]:
    """Serve on a port of this machine to who has the key alone; others get 401."""

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            good = self.headers.get("Authorization") == f"Bearer {key}"
            self.send_response(200 if good or self.path == "/ready" else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "tiny"}], "got": body}).encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
