"""Takes away what nothing on a node needs any more."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Program, failing
from plans.collecting import collect_program
from plans.collection import Collection

SAID = "@collection"
"""Under which an outcome keeps what the program said: no service has such a name."""


@operation()
def collected(collection: Collection) -> Generator[Program, None, None]:
    """
    Take away deployments, environments, kernel caches, Pythons and images that nothing needs.

    + collection: what goes, decided from what the node keeps

    The node first compares what that was decided from; where one thing moved it refuses as
    ``STALE_PLAN`` and takes nothing.

    **Example:**

    .. code:: python

        collection.collected(collection=found, name="Collect")
    """
    if not collection.items:
        host.noop("there is nothing to collect")
        return

    def keep_output(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        outcome_of(host).said[SAID] = tuple(output.stdout_lines)
        return failing("not all of it could be collected")(state, host, ok, output)

    yield Program(collect_program(collection), "collect", show=False, judge=keep_output)
