"""What the nodes do now, at the end of a terminal: drawn anew twice a second over itself.

All that is printed meanwhile goes above it. Where it cannot be drawn (no terminal, TERM=dumb,
NO_COLOR, -v) each step is a line, as it begins.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import gevent
from rich.console import Console

from plans.board import Board

TICK_S = 0.5
"""Seconds from one drawing to the next; what takes less than one is not drawn."""

STEPS_ARE_LINES = 8
"""Nodes up to which each step is also a line that stays; with more they would scroll all away."""


def can_draw(console: Console) -> bool:
    """Say whether a console is a terminal on which lines can be drawn anew."""
    return console.file.isatty() and not console.is_dumb_terminal and not console.no_color


class _Above:
    """A stream whose text goes above what is drawn."""

    def __init__(self, stream: TextIO, live: Live) -> None:
        self._stream, self._live = stream, live

    def write(self, text: str) -> int:
        """Write, with nothing drawn behind it until the line is whole."""
        self._live.erase()
        self._live.whole_line = text.endswith("\n") or (not text and self._live.whole_line)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Live:
    """Draws what a board tells of the nodes."""

    def __init__(self) -> None:
        self.board = Board()
        self.whole_line = True
        self._drawn = 0
        self._stream: TextIO = sys.stderr

    def hear(self, event: str, values: Mapping[str, Any]) -> None:
        """Take an event of the run."""
        self.board.hear(event, values, time.monotonic())

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while the context lasts; nothing of it stays."""
        out, err = sys.stdout, sys.stderr
        self._stream = err
        self.board.begin()
        sys.stderr = _Above(err, self)
        if out.isatty():
            sys.stdout = _Above(out, self)
        drawing = gevent.spawn(self._draw)
        try:
            yield
        finally:
            drawing.kill()
            self.erase()
            sys.stdout, sys.stderr = out, err

    def erase(self) -> None:
        """Take away what is drawn; the cursor is then where it began."""
        if self._drawn:
            self._stream.write(f"\r\x1b[{self._drawn}A\x1b[J")
            self._stream.flush()
            self._drawn = 0

    def _draw(self) -> None:
        while True:
            gevent.sleep(TICK_S)
            if not self.whole_line:
                continue
            size = shutil.get_terminal_size()
            lines = self.board.lines(time.monotonic(), size.columns, size.lines)
            self.erase()
            if lines:
                self._stream.write("".join(f"\x1b[2m{line}\x1b[0m\n" for line in lines))
                self._stream.flush()
                self._drawn = len(lines)
