"""What planning gathers on the way: everything is said, not the first of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from plans.plan import Change, ChangeKind
from plans.refusals import Caution, Refusal


@dataclass
class Findings:
    """Refusals, cautions, changes and what is unresolved, for all services of a node."""

    refusals: list[Refusal] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    def refuse(
        self, code: str, service: str | None, seen: str, needed: str, advice: str, diff: str = ""
    ) -> None:
        self.refusals.append(Refusal(code, seen, needed, advice, service, diff))

    def change(
        self, service: str | None, kind: ChangeKind, what: str, why: str, diff: str = ""
    ) -> None:
        self.changes.append(Change(kind, what, why, service, diff))
