"""What the server's log says: known lines by pattern, with their meaning and advice.

The data lies in `releases/data/log_lines.yaml`; each entry carries sample lines that it must
match, which the tests hold it to. Nothing here reads a log: callers hand in lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from releases.schema import Pattern, Record, Release, Sourced, Specifiers, Text
from releases.table import DATA
from releases.versions import in_specifiers
from releases.yaml_text import read_yaml

Level = Literal["fatal", "warning", "phase", "drain", "noise"]
Phase = Literal["starting", "loading_weights", "compiling", "warming_up", "ready"]

PHASES: tuple[Phase, ...] = ("starting", "loading_weights", "compiling", "warming_up", "ready")

# SGLang colours some warnings and pads progress bars with carriage returns.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogLine(Sourced):
    """A line that is understood.

    `fatal` marks a line of another level after which requests are lost; `secret` one that may
    hold a key, so that only its meaning may be shown.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    level: Level
    phase: Phase | None = None
    fatal: bool = False
    secret: bool = False
    pattern: Pattern
    releases: Specifiers
    meaning: Text
    advice: Text
    sample: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _phase_of_phase_lines(self) -> LogLine:
        if (self.level == "phase") != (self.phase is not None):
            raise ValueError(f"{self.id}: a phase line has a phase, and no other line has one")
        return self

    @property
    def is_fatal(self) -> bool:
        """Whether this line means that the server ended, or lost requests."""
        return self.fatal or self.level == "fatal"


class Finding(Record):
    """A known line in a log: where it stood first and last (from 1), and how often.

    `line` is its last occurrence, empty where the entry may hold a secret; `values` are the
    named groups of the pattern in that occurrence.
    """

    entry: LogLine
    first: int
    last: int
    count: int
    line: str
    values: dict[str, str]


class _File(Record):
    lines: tuple[LogLine, ...]


def load_log_lines(text: str | None = None) -> tuple[LogLine, ...]:
    """Return the known lines in matching order, from TEXT or the data file.

    Raise pydantic's ValidationError for data that does not fit, ValueError for a repeated id.
    """
    if text is None:
        text = (DATA / "log_lines.yaml").read_text(encoding="utf-8")
    data: Any = read_yaml(text)
    entries = _File.model_validate(data).lines
    ids = [e.id for e in entries]
    if len(ids) != len(set(ids)):
        raise ValueError("an id is used twice")
    return entries


LOG_LINES: tuple[LogLine, ...] = load_log_lines()


@cache
def _patterns(version: str | None) -> tuple[tuple[LogLine, re.Pattern[str]], ...]:
    return tuple(
        (e, re.compile(e.pattern))
        for e in LOG_LINES
        if version is None or in_specifiers(version, e.releases)
    )


def _match(line: str, release: Release | None) -> tuple[LogLine, re.Match[str]] | None:
    clean = _ESCAPES.sub("", line)
    for entry, pattern in _patterns(release.version if release else None):
        found = pattern.search(clean)
        if found is not None:
            return entry, found
    return None


def classify(line: str, release: Release | None = None) -> LogLine | None:
    """Return the known line that LINE is, or None. With RELEASE None those of all releases."""
    found = _match(line, release)
    return None if found is None else found[0]


def scan(lines: Iterable[str], release: Release | None = None) -> list[Finding]:
    """Return what is known in LINES, one finding for each entry, in order of first occurrence."""
    out: dict[str, Finding] = {}
    for number, line in enumerate(lines, 1):
        found = _match(line, release)
        if found is None:
            continue
        entry, match = found
        earlier = out.get(entry.id)
        out[entry.id] = Finding(
            entry=entry,
            first=earlier.first if earlier else number,
            last=number,
            count=earlier.count + 1 if earlier else 1,
            line="" if entry.secret else line.rstrip("\r\n"),
            values={k: v for k, v in match.groupdict().items() if v is not None},
        )
    return list(out.values())


def phase_of(lines: Iterable[str], release: Release | None = None) -> Phase | None:
    """Return the furthest phase that LINES, the log of one start, reached; None before the first.

    Phases do not go back: graphs are also captured while weights of a draft model load.
    """
    furthest: Phase | None = None
    for line in lines:
        entry = classify(line, release)
        if entry is None or entry.phase is None:
            continue
        if furthest is None or PHASES.index(entry.phase) > PHASES.index(furthest):
            furthest = entry.phase
    return furthest


def drained(lines: Iterable[str], release: Release | None = None) -> bool:
    """Return whether LINES, the log of one stop, say that no request remained.

    An exit code of 0 is no proof: a server that was marked unhealthy drops its requests and
    exits with 0 too.
    """
    last: str | None = None
    for line in lines:
        entry = classify(line, release)
        if entry is not None and (entry.id in ("drained", "draining") or entry.is_fatal):
            last = entry.id
    return last == "drained"
