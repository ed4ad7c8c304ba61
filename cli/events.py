"""The events of a run, from its start to its end: one JSON object a line.

The schema is ``SCHEMA``, documented in docs/events.md; names are only added to, never changed,
without a note in the changelog.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import click

from cli.keep import NotWritten

SCHEMA: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "run-started": {
            "schema": "version of this schema: 1",
            "toolkit": "its version",
            "command": "plan, apply, restart, …",
            "target": "the inventory or hosts, as given",
        },
        "connecting": {"node": "its name"},
        "connected": {"node": "its name"},
        "read": {
            "node": "its name",
            "ok": "whether it was reached and could be read",
            "seconds": "how long that took",
        },
        "planned": {
            "node": "its name",
            "decision": "image, wheel or refused",
            "refusals": "codes",
            "changes": "how many",
        },
        "step-started": {"node": "its name", "step": "what is done, in words"},
        "step-ended": {
            "node": "its name",
            "step": "as it started",
            "ok": "whether it succeeded",
            "seconds": "how long it took",
        },
        "node-ended": {
            "node": "its name",
            "ok": "whether nothing was wrong with it",
            "codes": "of refusals and errors",
            "failures": "sentences",
        },
        "run-ended": {"exit_code": "of the command", "seconds": "how long the run took"},
    }
)
"""What each event carries, beside ``event`` and ``time`` (seconds since 1970)."""

SCHEMA_VERSION = 1


class Events:
    """Writes events to a file as they happen, or nowhere."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file anew, private. Raises NotWritten."""
        self._began = time.monotonic()
        self.listeners: list[Callable[[str, Mapping[str, Any]], None]] = []
        self._file = None
        if path is not None:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            except OSError as error:
                raise NotWritten(path, error) from None
            # A line at a time: whoever follows it never reads half of one.
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return round(time.monotonic() - self._began, 3)

    def tell(self, event: str, **values: Any) -> Self:
        """Write an event of ``SCHEMA`` with all its values. A full disk ends no run."""
        if set(values) != set(SCHEMA[event]):
            raise ValueError(f"{event}: has {sorted(values)}, the schema {sorted(SCHEMA[event])}")
        for listener in self.listeners:
            listener(event, values)
        if self._file is not None:
            document = {"event": event, "time": round(time.time(), 3), **values}
            try:
                self._file.write(json.dumps(document, ensure_ascii=False) + "\n")
            except OSError as error:
                click.echo(f"--events: not written on: {error.strerror}", err=True)
                self._file = None
        return self
