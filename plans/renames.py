"""Deprecated flags, rewritten to what the release says to write instead.

A release that goes on taking the old name may stop with the next one; and SGLang's ``--config``
refuses a flag that shares its destination with a deprecated one. So ``server.yaml`` has the new
name, and the plan says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from releases.schema import Flag, Release
from releases.table import is_given, normalise_flag

_INSTEAD = re.compile(
    r"--(?P<name>[a-z0-9-]+(?:\{[a-z,]+\}[a-z0-9-]*)?)(?:(?:=| )(?P<value>[a-z0-9_]+|<[a-z-]+>))?"
)
_BRACES = re.compile(r"\{([a-z,]+)\}")


@dataclass(frozen=True)
class Renamed:
    """A deprecated flag and what stands in its place: flags and their values."""

    flag: str
    instead: Mapping[str, Any]
    dropped: tuple[str, ...] = ()  # given flags that the new one takes the place of as well

    @property
    def text(self) -> str:
        """What is said of it in a plan."""
        words = ", ".join(f"{name}: {_shown(value)}" for name, value in self.instead.items())
        also = f" (in place of {', '.join(self.dropped)} as well)" if self.dropped else ""
        return f"--{self.flag} is deprecated: server.yaml has {words}{also}"


def rewritten(
    release: Release, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Renamed], list[str]]:
    """Return the arguments with current names, what was renamed, and what is given twice.

    The names of the result have dashes. Of a flag of which old and new name are both given
    neither is taken: the sentences say which, for a refusal. A flag that only says in prose what
    to do instead stays as it is.
    """
    given = {normalise_flag(name): value for name, value in arguments.items()}
    out = dict(given)
    renamed: list[Renamed] = []
    twice: list[str] = []
    for name, value in given.items():
        flag = release.flags.get(name)
        if flag is None or flag.deprecated is None or not is_given(value):
            continue
        one = _instead(release, flag, value, given)
        if one is None:
            continue
        there = [new for new in one.instead if _given_as(release, new, out)]
        if there:
            named = " and ".join(f"--{new}" for new in there)
            twice.append(f"--{name} is deprecated and means {named}, which is given too")
            continue
        for gone in (name, *one.dropped):
            out.pop(gone)
        out.update(one.instead)
        renamed.append(one)
    return out, renamed, twice


def _instead(release: Release, flag: Flag, value: Any, given: Mapping[str, Any]) -> Renamed | None:
    found = _INSTEAD.fullmatch(flag.deprecated or "")
    if found is None:
        return None
    names = _names(found["name"])
    if any(new not in release.flags for new in names):
        return None
    said = found["value"]
    dropped: tuple[str, ...] = ()
    if said is not None and said.startswith("<"):
        # --attn-dp-size <dp-size>: the value of another flag, whose place it takes too.
        other = said.strip("<>")
        dropped = tuple(name for name in given if _canonical(release, name) == other)
        value = given[dropped[0]] if dropped else 1
    elif said is not None:
        value = said
    elif release.flags[names[0]].takes == "switch" and flag.takes != "switch":
        value = True
    return Renamed(flag.name, dict.fromkeys(names, value), dropped)


def _names(text: str) -> list[str]:
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    return [text.replace(braces[0], word) for word in braces[1].split(",")]


def _canonical(release: Release, name: str) -> str:
    flag = release.flags.get(name)
    return flag.canonical if flag else name


def _given_as(release: Release, new: str, arguments: Mapping[str, Any]) -> bool:
    return any(
        _canonical(release, name) == _canonical(release, new) and is_given(value)
        for name, value in arguments.items()
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
