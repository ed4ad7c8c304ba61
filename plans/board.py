"""What each node of a run does now and for how long, from the events of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AT_MOST = 12
"""Lines of nodes that are shown at the same time; the rest is a count."""


class Board:
    """Hears the events of a run, and tells in few lines how it stands."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[str, float]] = {}  # by node: what it does, since when
        self._seen: dict[str, None] = {}
        self._failed: set[str] = set()

    @property
    def nodes(self) -> int:
        """How many nodes are in this run, as far as is known."""
        return len(self._seen)

    def begin(self) -> None:
        """Begin anew with the nodes of another part of the run."""
        self._now, self._seen, self._failed = {}, {}, set()

    def hear(self, event: str, values: Mapping[str, Any], at: float) -> None:
        """Take an event; ``at`` is its time in seconds, of any clock."""
        node = values.get("node")
        if node is None:
            return
        self._seen[node] = None
        match event:
            case "connecting":
                self._now[node] = ("is connected to", at)
            case "connected":
                self._now[node] = ("is read", at)
            case "step-started":
                self._now[node] = (values["step"], at)
            case _:
                self._now.pop(node, None)
        if values.get("ok") is False:
            self._failed.add(node)

    def lines(self, at: float, width: int, height: int) -> list[str]:
        """Return the nodes at work, each in a line, those first that take longest, and in one line
        how many there are. No line is as wide as ``width``; there are fewer than ``height``."""
        if not self._now:
            return []
        longest = sorted(self._now, key=lambda name: self._now[name][1])
        shown = longest[: max(0, min(AT_MOST, height - 2))]
        lines = [_line(name, *self._now[name], at, width) for name in shown]
        more = len(longest) - len(shown)
        parts = [
            f"{len(longest)} of {self.nodes} nodes at work"
            + (f", {more} not shown" if more else "")
        ]
        parts += [f"{len(self._failed)} failed"] if self._failed else []
        if self.nodes > 1:
            lines.append(_cut("; ".join(parts), width - 1))
        return lines


def _line(name: str, what: str, since: float, at: float, width: int) -> str:
    took = f"  {_duration(at - since)}"
    room = width - 1 - len(took)
    # Of a narrow line a third is for the name: what a node does is not to be guessed.
    name = _cut(name, max(room // 3, room - 2 - len(what)))
    return _cut(f"{name}  {what}", room) + took


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(0, room - 1)]}…"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
