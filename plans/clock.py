"""A node's clock, against the one of the machine that plans."""

from __future__ import annotations

from facts.records import Survey, known
from plans.refusals import Caution

TOLERATED_S = 300
"""Seconds that two clocks may differ: five minutes, as Kerberos has it (RFC 4120, 8.2).

A survey takes up to 20 s, which is no matter here."""


def clock_cautions(survey: Survey, now: float) -> tuple[Caution, ...]:
    """Return what to know of a clock that is wrong. ``now`` is this machine's, seconds since 1970.

    A clock that could not be read is nothing to act on: deadlines count on no clock of a day.
    """
    epoch = survey.host.time_epoch
    if not known(epoch) or abs(epoch - now) <= TOLERATED_S:
        return ()
    off = int(epoch - now)
    where = "ahead of" if off > 0 else "behind"
    return (
        Caution(
            "CLOCK_OFF",
            f"the node's clock is {_long(abs(off))} {where} this machine's: certificates of registry "
            "and hub may count as expired or not yet valid, and the times of logs are wrong. See "
            "`timedatectl`; sudo timedatectl set-ntp true",
        ),
    )


def _long(seconds: int) -> str:
    for unit, size in (("days", 86400), ("hours", 3600)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds // 60} minutes"
