"""Ctrl-C while the tool is still being imported: it ends at once, with 130 and one line.

Imported before anything else, so it imports next to nothing itself. Later, once nodes can be
at work, ``cli.main`` takes the signal: then there is something to tell.
"""

from __future__ import annotations

import os
import signal
import sys

SAID = "interrupted: nothing was begun"


def end_at_once() -> None:
    """Let an interrupt end the process from here on, without a traceback of what it imports."""
    signal.signal(signal.SIGINT, _end)


def _end(_signal: int, _frame: object) -> None:
    # No exception: whoever imports may catch it, and what is half imported cannot tell of it.
    os.write(2, f"{SAID}\n".encode())
    if "--json" in sys.argv[1:]:
        document = '{"nodes": [], "error": {"code": "INTERRUPTED", "text": "interrupted"}}\n'
        os.write(1, document.encode())
    os._exit(130)
