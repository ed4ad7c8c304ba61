"""What became of a node in this run: one home for what operations find out on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyinfra.api.host import Host

from operations.realhost import real_host
from plans.refusals import Refusal
from plans.verification import Verdict


@dataclass
class Outcome:
    """What operations learned of one node while they ran."""

    refusals: list[Refusal] = field(default_factory=list)  # STALE_PLAN and its like
    failures: list[str] = field(default_factory=list)  # sentences
    notes: list[str] = field(default_factory=list)  # sentences worth a line, no failure
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by service
    environments: set[str] = field(default_factory=set)  # keys of those that were made
    said: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by service, while it acted
    proved: set[str] = field(default_factory=set)  # services that stood their soak
    left: set[str] = field(default_factory=set)  # services taken out of the rotation
    begun: bool = True  # False: others failed before anything was done here
    lost: bool = False  # the connection was: how far it came is not known


def is_bad(outcome: Outcome) -> bool:
    """Say whether something went wrong on a node."""
    unverified = any(not verdict.ok for verdict in outcome.verdicts.values())
    return bool(outcome.failures or outcome.refusals or unverified)


_outcomes: WeakKeyDictionary[Host, Outcome] = WeakKeyDictionary()


def outcome_of(host: Host) -> Outcome:
    """Return the outcome of a node in this run; a new one the first time."""
    host = real_host(host)
    return _outcomes.setdefault(host, Outcome())


def forget_outcome(host: Host) -> Outcome:
    """Begin anew with a node in the same run; return what became of it until now."""
    host = real_host(host)
    return _outcomes.pop(host, None) or Outcome()
