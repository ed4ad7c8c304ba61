"""The server's argument list, read by the flags of a release as its own parser would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from plans.adopt.records import Note
from releases.schema import Flag, Release
from releases.table import RELEASES, normalise_flag

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"-[0-9.]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Read:
    """Arguments by flag name with dashes, as an inventory has them; what could not be read."""

    arguments: dict[str, Any]
    lost: tuple[Note, ...]


def read_flags(words: Sequence[str], release: Release) -> Read:
    """Return the arguments of an argument list.

    Aliases get their flag's own name, shortened names their full one; of a flag that is given
    twice the last counts, as for argparse. A flag that the release does not have is read by
    another release that has it, and listed where none has.
    """
    found: dict[str, Any] = {}
    lost: list[Note] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or word == "--":
            lost.append(Note(repr(word), "it belongs to no flag"))
            continue
        name, equals, value = word.partition("=")
        flag = _flag(normalise_flag(name), release)
        following = _values(words, at)
        if flag is None:
            at += 0 if equals else len(following)
            why = f"no release that the toolkit knows has it (SGLang {release.version} was asked)"
            lost.append(Note(f"--{normalise_flag(name)}", why))
            continue
        given: list[str] = [value] if equals else []
        if not equals and flag.takes == "list":
            given = following
        elif not equals and flag.takes in ("value", "optional"):
            # argparse: a value may begin with a dash only where it is a negative number.
            given = following[:1]
        at += 0 if equals else len(given)
        if flag.takes in ("switch", "toggle", "none") and equals:
            lost.append(Note(f"--{flag.name}={value}", "it is a switch and takes no value"))
        elif flag.takes == "value" and not given:
            lost.append(Note(f"--{flag.name}", "its value is missing"))
        else:
            key = flag.name if flag.takes == "toggle" else flag.canonical
            found.pop(key, None)
            found[key] = _value(flag, given)
    return Read(found, tuple(lost))


def _values(words: Sequence[str], at: int) -> list[str]:
    found = []
    for word in words[at:]:
        if word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
            break
        found.append(word)
    return found


def _flag(name: str, release: Release) -> Flag | None:
    """Return a flag by its name or the beginning of just one, as argparse does."""
    others = [one for one in reversed(RELEASES.values()) if one is not release]
    for one in (release, *others):
        if name in one.flags:
            return one.flags[name]
    begun = [flag for key, flag in release.flags.items() if key.startswith(name)]
    return begun[0] if len({flag.canonical for flag in begun}) == 1 else None


def _value(flag: Flag, given: Sequence[str]) -> Any:
    if flag.takes in ("switch", "toggle", "none") or not given:
        return True if flag.takes != "list" else []
    read = [_number(text, flag.type) for text in given]
    return read if flag.takes == "list" else read[0]


def _number(text: str, kind: str) -> Any:
    """Return a number where a flag takes one and the text is one, else the text."""
    try:
        if kind in ("int", "human_readable_int", "float") and _WHOLE.fullmatch(text):
            return int(text)
        if kind == "float" and isfinite(float(text)):
            return float(text)
    except ValueError:
        pass
    return text
