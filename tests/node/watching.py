"""Looks for secret values on a node while something happens there, and in what a run printed."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .harness.machine import Node
from .site import Ran

SWEEP = Path(__file__).with_name("sweep.py")


def forms(*values: str) -> list[str]:
    """Return values as they may stand in a text: plain, and within base64 at any place."""
    found = list(values)
    for value in values:
        for shift in range(3):
            encoded = base64.b64encode(b"x" * shift + value.encode()).decode()
            found.append(encoded[4 if shift else 0 : -4])
    return found


@contextmanager
def watched(node: Node, *values: str) -> Iterator[dict[str, Any]]:
    """Search a node for values from now on; what was found is in the dictionary afterwards."""
    found: dict[str, Any] = {}
    since = float(node.run("date +%s").stdout) - 1
    node.put("/usr/local/lib/sweep.py", SWEEP.read_text(encoding="utf-8"))
    process = subprocess.Popen(
        [*node.ssh(), "exec python3 /usr/local/lib/sweep.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"words": forms(*values), "since": since}) + "\n")
    process.stdin.flush()
    try:
        yield found
    finally:
        out, _ = process.communicate(timeout=120)
    found |= json.loads(out)


def nothing_in(ran: Ran, *values: str) -> None:
    """Check a run's output, without printing a value where the check fails."""
    hits = [form[:4] for form in forms(*values) if form in ran.out + ran.err]
    assert not hits
