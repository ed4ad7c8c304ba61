"""A server, its clients and the stop gate, in a network namespace of their own.

Run by test_stop_gate.py as ``unshare --net python -m tests.unit.shut_scenario GATE ADDRESS TOOL``.
Prints what happened as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_S = 3.0
PARTS = 6


class Server(ThreadingHTTPServer):
    """Counts requests; answers some of them slowly, in parts."""

    address_family = socket.AF_INET
    seen: list[str]


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1, and keeps its connections."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        parts = PARTS if self.path == "/slow" else 1
        self.send_response(200)
        self.send_header("Content-Length", str(5 * parts))
        self.end_headers()
        for number in range(parts):
            if number:
                time.sleep(SLOW_S / PARTS)
            self.wfile.write(b"part\n")
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def refused(address: str, port: int) -> str:
    """Return how a new connection is answered."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return type(error).__name__
    return "accepted"


def main(gate: str, listens: str, tool: str) -> None:
    """Go through one stop, as systemd would; print what was seen."""
    for word in ("link set lo up", "address add 10.9.9.9/32 dev lo"):
        subprocess.run(["ip", *word.split()], check=True)
    reached = {"0.0.0.0": "10.9.9.9", "::": "::1"}.get(listens, listens)
    if ":" in listens:
        Server.address_family = socket.AF_INET6
    server = Server((listens, 0), Handler)
    server.seen = []
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    other = Server(("127.0.0.1" if ":" not in listens else "::1", 0), Handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()

    def run(word: str) -> str:
        done = subprocess.run(
            ["sh", gate, word],
            env={**os.environ, "PATH": tool, "MAINPID": str(main_process.pid)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout + done.stderr

    # Its environment is what the server was started with; ours may be the next one's.
    settings = {
        "SGLANG_PORT": str(port),
        "SGLANG_ADDRESS": listens,
        "SGLANG_PROBE_HOST": f"[{reached}]" if ":" in reached else reached,
        "SGLANG_READY_PATH": "/ready",
        "SGLANG_SHUTS": "requests",
    }
    main_process = subprocess.Popen(["sleep", "60"], env={**os.environ, **settings})
    slow = http.client.HTTPConnection(reached, port, timeout=20)
    slow.request("GET", "/slow")
    kept = http.client.HTTPConnection(reached, port, timeout=1.5)
    kept.request("GET", "/kept")
    kept.getresponse().read()
    found: dict[str, object] = {"said": run("shut").splitlines()}
    found["new"] = refused(reached, port)
    found["other"] = refused(*other.server_address[:2])  # type: ignore[arg-type]
    kept.request("GET", "/late")
    try:
        found["late"] = kept.getresponse().status
    except OSError as error:
        found["late"] = type(error).__name__
    answer = slow.getresponse()
    found["slow"] = answer.read().decode()
    found["again"] = run("shut").splitlines()
    # Before it is opened: the kernel sends again what was dropped, and a server that had ended
    # as this one has not would no longer take it.
    found["seen"] = list(server.seen)
    main_process.kill()
    main_process.wait()
    found["after"] = run("after").splitlines()
    found["opened"] = refused(reached, port)
    tables = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True).stdout
    found["left"] = "sglang" in tables
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
