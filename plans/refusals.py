"""Refusals and findings: each a stable code, what was seen, what is needed, what mends it.

The catalogue behind the codes (why it matters, ways out, how sure, sources) is
``plans/data/codes.yaml``, read by ``plans.codes``; ``explain CODE`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A reason why nothing is changed on this node (or for this service of it)."""

    code: str  # stable, upper case: "DRIVER_TOO_OLD"
    seen: str  # "driver 510.47.03"
    needed: str  # "525.60.13 or newer"
    advice: str  # the command or act that mends it
    service: str | None = None  # None: the whole node
    diff: str = ""  # unified, where a text that was edited is refused; for people alone

    def as_dict(self) -> dict[str, str]:
        """Return the form in which it stands in JSON documents, without the diff."""
        found = {"code": self.code, "seen": self.seen, "needed": self.needed, "advice": self.advice}
        if self.service is not None:
            found["service"] = self.service
        return found


@dataclass(frozen=True)
class Caution:
    """Something the operator should know that does not stop the plan."""

    code: str
    text: str
    service: str | None = None

    def as_dict(self) -> dict[str, str]:
        """Return the form in which it stands in JSON documents."""
        found = {"code": self.code, "text": self.text}
        if self.service is not None:
            found["service"] = self.service
        return found
