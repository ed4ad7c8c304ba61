"""Commands of the operator's own around a stop: how a load balancer learns of it.

``before_stop`` runs before a server is stopped for a change or a restart, ``after_verify`` once
the new one has answered (and, in an upgrade, has stood its soak). Each is a line of shell that may
run more than once for the same change, so it should end well where there is nothing left to do.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from facts.records import Unknown
from plans.numbers import a_number
from plans.recorded import read_record

Moment = Literal["before_stop", "after_verify"]

LIMIT_S = 60.0
"""Seconds that a hook may take where nothing is said."""


class Hook(BaseModel):
    """One command: a line of shell, where it runs, and the seconds that it may take.

    It is told NODE, SERVICE, PORT and RELEASE in its environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    on: Literal["controller", "node"] = "controller"
    limit: Annotated[float, BeforeValidator(a_number), Field(gt=0, le=3600)] = LIMIT_S

    @field_validator("run", mode="before")
    @classmethod
    def _is_a_command(cls, value: Any) -> Any:
        # Said without it: somebody may have written a token there.
        if not isinstance(value, str) or not value.strip() or set(value) & set("\0\n\r"):
            raise ValueError("is no command: write a line of shell, such as 'lb-ctl drain $NODE'")
        return value


class Hooks(BaseModel):
    """What runs before a stop and after a verify, in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before_stop: tuple[Hook, ...] = ()
    after_verify: tuple[Hook, ...] = ()

    def at(self, moment: Moment) -> tuple[Hook, ...]:
        """Return those of a moment."""
        return self.before_stop if moment == "before_stop" else self.after_verify


def to_run(hooks: Hooks) -> dict[str, str]:
    """Return what a record says from a verify on until the hooks after it have run; {}: no hooks."""
    return {"after_verify": "to run"} if hooks.after_verify else {}


def are_to_run(record: str | Unknown) -> bool:
    """Say whether the text of a record tells that the hooks after its verify did not all run."""
    return read_record(record).get("after_verify") == "to run"
