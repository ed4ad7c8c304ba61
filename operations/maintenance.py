"""Marks a node as drained, and takes the mark away again."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Program, failing, say_failed
from plans.maintenance import Mark, Step, anew, remove_mark, write_mark


@operation(is_idempotent=False)
def marked(mark: Mark) -> Generator[Program, None, None]:
    """
    Write on a node what it is drained for: it comes before the first service is stopped.

    + mark: what it is drained for, and what the node is now

    **Example:**

    .. code:: python

        maintenance.marked(mark=mark, name="Mark the node")
    """
    yield Program(write_mark(mark), "mark the node", judge=failing("the node was not marked"))


@operation(is_idempotent=False)
def called_off() -> Generator[Program, None, None]:
    """
    Take the mark of a node away, whatever state it is in.

    **Example:**

    .. code:: python

        maintenance.called_off(name="Call the maintenance off")
    """
    yield Program(remove_mark(), "call off", judge=failing("the mark could not be taken away"))


@operation(is_idempotent=False)
def ended(mark: Mark, steps: tuple[Step, ...]) -> Generator[Program, None, None]:
    """
    Take the mark of a node away, where all is well: it comes after the verify of its services.

    + mark: what the node was drained for
    + steps: what must be so, as the survey before the verify saw it

    **Example:**

    .. code:: python

        maintenance.ended(mark=mark, steps=steps, name="End the maintenance")
    """
    if not host.state.is_executing:
        # It is decided once the verify has been.
        yield Program(remove_mark(), "back")
        return
    outcome = outcome_of(host)
    # What the services are was seen anew: by the verify.
    good = {name for name, verdict in outcome.verdicts.items() if verdict.ok}
    bad = [one for one in steps if not one.ok and one.what not in good]
    missing = [name for name in mark.services if name not in good]
    if bad or missing:
        said = [f"{one.what}: {one.seen}" for one in bad]
        said += [
            f"{name} was not verified" for name in missing if name not in (b.what for b in bad)
        ]
        said += ["where it is not to be rebooted: drain --call-off"] if not anew(steps) else []
        say_failed(host, f"the node stays in maintenance: {'; '.join(said)}")
        return
    yield Program(remove_mark(), "back", judge=failing("the mark could not be taken away"))
    outcome.notes.append(f"back from its {mark.purpose}: all of it is well, and verified")
