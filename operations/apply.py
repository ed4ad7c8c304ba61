"""Ends the apply of a node: its lock is given back."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.context import host

from operations.remote import Program
from operations.tickets import held_of
from plans import applylock


@operation(is_idempotent=False)
def released() -> Generator[Program, None, None]:
    """
    Give the apply lock of a node back, where this run took it.

    It comes last. A run that fails gives its lock back by itself.

    **Example:**

    .. code:: python

        apply.released(name="Give the apply lock back")
    """
    held = held_of(host)
    if not held.taken:
        host.noop("this run holds no lock here")
        return
    held.taken = False
    yield Program(applylock.unlock(held.ticket), "give the apply lock back", show=False, lock="no")
