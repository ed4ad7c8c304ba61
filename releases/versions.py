"""Comparing version numbers: releases, drivers, and the specifier sets of the data files."""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `0.5.22` or `580.126.09`.

    Trailing zeros do not count, so `580` equals `580.0`. A `v` before and anything after the
    numbers (`.post1`, `+cu129`) are ignored. Raise ValueError where TEXT has no number first.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if found is None:
        raise ValueError(f"not a version: {text!r}")
    numbers = [int(part) for part in found.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def check_specifiers(text: str) -> str:
    """Return TEXT if it is a specifier set such as `>=0.5.19,<0.5.23`; else raise ValueError."""
    for clause in text.split(","):
        if _CLAUSE.fullmatch(clause.strip()) is None:
            raise ValueError(f"not a specifier set: {text!r}")
    return text


def in_specifiers(version: str, specifiers: str) -> bool:
    """Return whether VERSION satisfies every clause of SPECIFIERS; ValueError if either is bad."""
    own = parse_version(version)
    for clause in specifiers.split(","):
        found = _CLAUSE.fullmatch(clause.strip())
        if found is None:
            raise ValueError(f"not a specifier set: {specifiers!r}")
        other = parse_version(found.group(2))
        holds = {
            ">=": own >= other,
            "<=": own <= other,
            "==": own == other,
            "!=": own != other,
            ">": own > other,
            "<": own < other,
        }[found.group(1)]
        if not holds:
            return False
    return True
