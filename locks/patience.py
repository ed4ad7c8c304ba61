"""How often, and for how long, a server that does not answer is asked again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True)
class Patience:
    """`attempts` in all; waits double from `first_wait_s`; none is longer than `longest_wait_s`.

    No further attempt starts after `total_s`. Seconds. The numbers are ours: a registry that
    restarts is back within them, and a person who waits is told within two minutes.
    """

    attempts: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    total_s: float = 90.0
    sleep: Callable[[float], None] = time.sleep

    def begin(self) -> "Waiting":
        """Start counting for one request."""
        return Waiting(self, time.monotonic())


class Waiting:
    """The attempts of one request."""

    def __init__(self, patience: Patience, started: float) -> None:
        self._patience = patience
        self._started = started
        self._failed = 0

    def again(self, retry_after: str | None = None) -> bool:
        """Count a failed attempt; wait and return True when there is to be another.

        `retry_after` is the server's header. A server that asks for more than the longest wait is
        not asked again now: an earlier question would only be refused as well.
        """
        self._failed += 1
        wait = self._patience.first_wait_s * 2.0 ** (self._failed - 1)
        asked = seconds_of(retry_after)
        if asked is not None:
            if asked > self._patience.longest_wait_s:
                return False
            wait = max(wait, asked)
        wait = min(wait, self._patience.longest_wait_s)
        spent = time.monotonic() - self._started
        if self._failed >= self._patience.attempts or spent + wait > self._patience.total_s:
            return False
        self._patience.sleep(wait)
        return True


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds a Retry-After header asks for (a number or a date); None if unreadable."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
