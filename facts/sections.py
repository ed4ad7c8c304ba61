"""The sections of a survey's output, before anything in them is understood."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from facts.records import ABSENT, SCHEMA, Unknown


class SurveyError(Exception):
    """The output is not a survey; the message is a sentence that says why."""


NO_SUCH = 127
"""Exit code that survey.sh gives where a program or file is not there, as a shell does."""
CLOSED = 13
"""Exit code that survey.sh gives where it lacks permission to look (EACCES)."""
TIMED_OUT = (124, 137)
"""Exit codes of ``timeout``: ended, and killed."""

_FIRST = re.compile(r"sglang-survey (\d+)(?: (.*))?", re.ASCII)
_HEADING = re.compile(r"@ (\S+) rc=(\d{1,5})", re.ASCII)


@dataclass(frozen=True)
class Section:
    """What one program printed: its output and its errors, line by line, and its exit code."""

    name: str
    rc: int
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The output exactly as printed, its last line break included."""
        return "\n".join(self.out)

    @property
    def message(self) -> str:
        """What it said when it failed: its errors, else its output, without blank lines."""
        lines = [line.strip() for line in (self.err or self.out) if line.strip()]
        return "\n".join(lines[:20])

    @property
    def first(self) -> str | None:
        """The first line that is not blank; None where there is none."""
        return next((line.strip() for line in self.out if line.strip()), None)

    @property
    def failure(self) -> Unknown | None:
        """Why its output says nothing; None where it ended with 0."""
        if self.rc == 0:
            return None
        if self.rc == NO_SUCH:
            return ABSENT
        if self.rc in TIMED_OUT:
            return Unknown("unreadable", "did not return in time")
        if self.rc == CLOSED:
            said = " ".join(line.strip() for line in self.err if line.strip())
            return Unknown("unreadable", said[:400] or "no permission")
        return Unknown("unreadable", self.message[:400] or f"exit code {self.rc}")

    def value(self) -> str | Unknown:
        """Return its first line, or why there is none."""
        return self.failure or self.first or ABSENT


@dataclass(frozen=True)
class Sections:
    """All sections of one survey."""

    version: str
    sections: tuple[Section, ...]
    unfinished: tuple[str, ...] = ()  # parts that did not return
    seconds: float | Unknown = ABSENT
    _by_name: dict[str, list[Section]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for section in self.sections:
            self._by_name.setdefault(section.name, []).append(section)

    def all(self, name: str) -> tuple[Section, ...]:
        """Return every section called ``name``."""
        return tuple(self._by_name.get(name, ()))

    def get(self, name: str) -> Section | None:
        """Return the first section called ``name``; None where the survey has none."""
        return next(iter(self._by_name.get(name, ())), None)

    def missing(self, part: str) -> Unknown:
        """Return why a section of ``part`` is not there: never asked for, or never came back."""
        if part in {name.split(" ", 1)[0] for name in self.unfinished}:
            return Unknown("unreadable", "did not return in time")
        return ABSENT

    def value(self, name: str, part: str) -> str | Unknown:
        """Return the first line of the section ``name``, or why there is none."""
        section = self.get(name)
        return self.missing(part) if section is None else section.value()

    def lines(self, name: str, part: str) -> tuple[str, ...] | Unknown:
        """Return the lines of the section ``name``, or why there are none."""
        section = self.get(name)
        if section is None:
            return self.missing(part)
        return section.failure or section.out

    def timed_out(self) -> tuple[str, ...]:
        """Return the names of sections whose program was ended by its time limit."""
        return tuple(section.name for section in self.sections if section.rc in TIMED_OUT)


def split(lines: Iterable[str]) -> Sections:
    """Split a survey's output into its sections; raise SurveyError where it is not a whole one."""
    rest = iter(lines)
    version = _skip_to_first_line(rest)
    sections: list[Section] = []
    heading: tuple[str, int] | None = None
    out: list[str] = []
    err: list[str] = []
    ended = False
    for line in rest:
        first = line[:1]
        if first == " " and heading is not None:
            out.append(line[1:])
        elif first == "@":
            if heading is not None:
                sections.append(_section(heading, out, err))
                out, err = [], []
            if line.rstrip() == "@ end":
                ended = True
                break
            found = _HEADING.fullmatch(line.rstrip())
            if found is None:
                raise SurveyError(f"The survey has a heading that is none: {line[:80]!r}.")
            heading = (found[1], int(found[2]))
        elif first == "!" and heading is not None:
            err.append(line[1:])
        elif not line and heading is not None:
            out.append("")
        else:
            raise SurveyError(f"The survey has a line that belongs to no section: {line[:80]!r}.")
    if not ended:
        raise SurveyError(
            "The survey is cut: its last line is missing. The connection or the node's shell "
            "ended before it was complete; run it again."
        )
    return _with_parts(version, sections)


def _skip_to_first_line(lines: Iterator[str]) -> str:
    seen = ""
    for line in lines:
        found = _FIRST.fullmatch(line.rstrip())
        if found is None:
            seen = seen or line.strip()
            continue
        if found[1] != str(SCHEMA):
            raise SurveyError(
                f"The survey has schema {found[1][:20]}; this program reads schema {SCHEMA}. "
                "Read it with the version of the toolkit that wrote it, or record it anew."
            )
        return found[2] or ""
    if seen:
        raise SurveyError(f"The output is not a survey; it begins with {seen[:80]!r}.")
    raise SurveyError(
        "The node gave no survey: its output is empty, or the connection was lost before its end."
    )


def _section(heading: tuple[str, int], out: list[str], err: list[str]) -> Section:
    return Section(heading[0], heading[1], tuple(out), tuple(err))


def _with_parts(version: str, sections: list[Section]) -> Sections:
    unfinished: list[str] = []
    seconds: float | Unknown = ABSENT
    kept = []
    for section in sections:
        if section.name != "parts":
            kept.append(section)
            continue
        for line in section.out:
            word, _, value = line.partition(" ")
            if word == "unfinished":
                unfinished.append(value)
            elif word == "hundredths":
                digits = value.isascii() and value.isdigit() and len(value) < 12
                seconds = int(value) / 100 if digits else Unknown("malformed", value[:80])
    return Sections(version, tuple(kept), tuple(unfinished), seconds)
