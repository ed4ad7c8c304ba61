"""Goes back to an earlier deployment."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation

from operations.remote import Program
from operations.service import _judge_act
from plans.goingback import Back
from plans.switchback import switch_back


@operation(is_idempotent=False)
def switched_back(back: Back) -> Generator[Program, None, None]:
    """
    Make an earlier deployment the current one, start it, and follow it until it is ready.

    + back: what it takes, as ``plans.goingback`` worked it out

    Nothing is fetched. The node first compares what was seen of it, as at any switch.

    **Example:**

    .. code:: python

        back.switched_back(back, name="Go back to deployment 6 of chat")
    """
    yield Program(
        switch_back(back), f"go back with {back.name}", judge=_judge_act(back.name, back.release)
    )
