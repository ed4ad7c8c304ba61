"""What became of a node in this run: one home for what operations find out on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyinfra.api.host import Host
from pyinfra.context import ContextObject

from plans.refusals import Refusal
from plans.verification import Verdict


@dataclass
class Outcome:
    """What operations learned of one node while they ran."""

    refusals: list[Refusal] = field(default_factory=list)  # STALE_PLAN and its like
    failures: list[str] = field(default_factory=list)  # sentences
    notes: list[str] = field(default_factory=list)  # sentences worth a line, no failure
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by service
    said: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by service, while it acted


_outcomes: WeakKeyDictionary[Host, Outcome] = WeakKeyDictionary()


def outcome_of(host: Host) -> Outcome:
    """Return the outcome of a node in this run; a new one the first time."""
    if isinstance(host, ContextObject):
        host = host._get_module()  # type: ignore[no-untyped-call]
    return _outcomes.setdefault(host, Outcome())
