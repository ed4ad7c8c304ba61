"""A value that a node did not give, and why: for every record of a survey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, TypeVar

Why = Literal["absent", "unreadable", "unsupported", "malformed"]
"""Why a value is not known.

absent: the thing itself is not there (no such program, file, unit).
unreadable: it is there and could not be read (permission, time limit, crash).
unsupported: it was read, and says that this device or version has no such value.
malformed: it was read, and is not of the form it should have.
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """A value that the survey could not give; ``text`` is what was seen instead."""

    why: Why
    text: str = ""

    def __str__(self) -> str:
        return f"{self.why} ({self.text})" if self.text else self.why


ABSENT = Unknown("absent")
UNSUPPORTED = Unknown("unsupported")


def known(value: T | Unknown) -> TypeGuard[T]:
    """Say whether ``value`` is a value (and not an ``Unknown``)."""
    return not isinstance(value, Unknown)
