"""The apply lock of a node: one apply at a time works on it, and a dead one's ends.

An apply is several remote commands, so no single shell can hold a lock over all
of it. The file on the node says whose apply it is; every program of that apply
also holds a flock on it while it runs. The lock of another is respected while a
program of it runs, and for ``EXPIRES`` seconds after the last one ended; a later
program of a run that lost its lock refuses, so two never interleave.
"""

from __future__ import annotations

from dataclasses import dataclass

from plans import paths
from plans.deployment import render
from plans.onnode import REFUSAL_MARK

LOCK_MARK = "@lock "
"""Begins the line by which a program says the token of the lock that stands against it."""

EXPIRES = 300
"""Seconds after the end of an apply's last program from which on its lock is taken for dead.

Between two programs of one apply there is as a rule less than a second; under plain pyinfra
a node waits for the slowest of its inventory, and one that waited longer is refused then.
"""

PATIENCE = 60
"""Seconds that a program waits for what is left of the same controller's own cut run.

Such a program ends once it finds that nobody reads it any more: it says something every 15 s.
"""


@dataclass(frozen=True)
class Ticket:
    """One apply of one controller: its token, and who runs it, in words."""

    token: str  # no white space
    who: str  # "alice@ops (pid 123)"

    def __post_init__(self) -> None:
        if not self.token or not self.token.isascii() or len(self.token.split()) != 1:
            raise ValueError(f"{self.token!r} is no token")
        if not self.who.isprintable():
            raise ValueError(f"{self.who!r} holds a control character")


def locked(text: str, ticket: Ticket, *, held: bool = False, takes_over: str = "") -> str:
    """Return a program that runs ``text`` under the apply lock of its node.

    ``held``: whether an earlier program of the same apply took it. ``takes_over``: token of a
    run that is known to be dead. It refuses as APPLY_RUNNING where another apply works there,
    and as STALE_PLAN where the lock was held and is lost.
    """
    prologue = render(
        "lock.sh.j2",
        ticket=ticket,
        held=held,
        takes_over=takes_over,
        file=paths.APPLY_LOCK,
        directory=paths.RUN,
        expires=EXPIRES,
        patience=PATIENCE,
        refusal_mark=REFUSAL_MARK,
        lock_mark=LOCK_MARK,
    )
    return prologue + text


def unlock(ticket: Ticket) -> str:
    """Return the program that gives a node's apply lock back."""
    return render("unlock.sh.j2", ticket=ticket, file=paths.APPLY_LOCK)
