"""What a stop that waits for nothing loses: told before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OPEN_MARK = "@open "
"""Begins the line by which a node says how many connections are open to a server."""


def open_connections(lines: Iterable[str]) -> int | str:
    """Return how many are open, ``none`` where no server runs, ``unknown`` where that is not told."""
    for line in lines:
        if line.startswith(OPEN_MARK):
            said = line.removeprefix(OPEN_MARK).strip()
            return int(said) if said.isdigit() else said
    return "unknown"


def loss(seen: Mapping[str, int | str]) -> list[str]:
    """Return what is lost, a sentence for each service that runs; what is idle loses nothing."""
    told = []
    for name, count in seen.items():
        if count == "none":
            continue
        if count == 0:
            told.append(f"{name}: no connection is open; nothing is in flight now")
        elif isinstance(count, int):
            told.append(
                f"{name}: {count} connection{'' if count == 1 else 's'} open: every answer in flight "
                "on them is lost"
            )
        else:
            told.append(
                f"{name}: how many connections are open is not known: every answer in flight is lost"
            )
    return told
