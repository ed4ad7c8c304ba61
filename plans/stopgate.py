"""The stop gate: the program that systemd runs around each stop of a service.

It is the unit's own (``ExecStop=``, before the signal) and no part of ``restart`` or ``stop``:
a ``systemctl stop`` by hand, a stop of Docker and a reboot lose requests just as well, and a
connection to the controller that is cut leaves systemd at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from plans import paths

Shuts = Literal["requests", "connections"]

TALKATIVE = ("enable-http2", "grpc-mode", "smg-grpc-mode")
"""Arguments by which clients send while they are answered: HTTP/2 acknowledges what it reads.

In HTTP/1.1 a client that waits for its answer sends nothing, so what it sends is a new request.
"""

MEND_PATIENCE = 120
"""Seconds that a stop tries to mend a server that is marked unready: six health generations, each
20 s at the longest (SGLANG_HEALTH_CHECK_TIMEOUT)."""


LEFT_TRIES = 20
"""Looks, half a second apart, for processes that are on their way out when the server has ended."""


def shuts(server: Mapping[str, Any]) -> Shuts:
    """Return what the stop gate of a server with these arguments keeps out: new requests, also on
    connections that are open, or where that would stop answers in flight new connections alone."""
    on = (name for name in TALKATIVE for key in (name, name.replace("-", "_")) if server.get(key))
    return "connections" if any(on) else "requests"


def stop_gate_data(service: str) -> dict[str, object]:
    """Return what the template of the stop gate is rendered with, beside ``http``."""
    return {
        "service": service,
        "unit": paths.unit_of(service),
        "slice": paths.slice_of(service),
        "run": paths.RUN,
        "patience": MEND_PATIENCE,
        "tries": LEFT_TRIES,
    }
