"""Exit codes that scripts can use, and which of them a run over several nodes ends with."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0  # done, nothing wrong
    FAILED = 1  # failed on a node
    USAGE = 2  # wrong usage or bad input
    REFUSED = 3
    PENDING = 4  # plan --check: changes are pending
    UNVERIFIED = 5  # a verification failed
    INTERRUPTED = 130


ORDER = (Exit.INTERRUPTED, Exit.USAGE, Exit.FAILED, Exit.UNVERIFIED, Exit.REFUSED, Exit.PENDING)
"""Over several nodes the first of these that occurred is the run's."""


def worst(exits: Iterable[Exit]) -> Exit:
    """Return the exit code of a run from those of its nodes."""
    seen = set(exits)
    return next((code for code in ORDER if code in seen), Exit.OK)
