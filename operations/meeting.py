"""Where the nodes of one service meet, so that all of its ranks stop and start at the same time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from pyinfra.api import StringCommand, operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from operations.realhost import real_host
from operations.remote import give_back, say_failed

PAUSE_S = 0.2
"""Seconds between two looks for the others: of the controller's own memory, and asks no node."""

_coming: WeakKeyDictionary[State, dict[str, set[str]]] = WeakKeyDictionary()
_there: WeakKeyDictionary[State, dict[tuple[str, int], set[str]]] = WeakKeyDictionary()


def comes(host: Host, service: str) -> None:
    """Note that a node will come: said while a run is prepared, before any node acts.

    Who is not noted is waited for by nobody.
    """
    real = real_host(host)
    _coming.setdefault(real.state, {}).setdefault(service, set()).add(real.name)


class Meeting(StringCommand):
    """Waits on this machine until each other node of a service has come as far as this one."""

    def __init__(self, service: str, nodes: tuple[str, ...], stage: int) -> None:
        super().__init__(": the ranks of a service meet")
        self.service = service
        self.nodes = nodes
        self.stage = stage

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        met = _there.setdefault(state, {}).setdefault((self.service, self.stage), set())
        met.add(host.name)
        coming = _coming.get(state, {}).get(self.service, set())
        while missing := [node for node in self.nodes if node not in met]:
            failed = {one.name for one in state.failed_hosts}
            gone = [node for node in missing if node in failed or node not in coming]
            if gone:
                say_failed(
                    host,
                    f"{self.service}: {', '.join(gone)}, which runs another rank of it, does not come "
                    "as far: nothing was stopped or started here",
                )
                give_back(state, host, connector_arguments)
                return False, CommandOutput([])
            gevent.sleep(PAUSE_S)
        return True, CommandOutput([])


@operation(is_idempotent=False)
def met(service: str, nodes: tuple[str, ...], stage: int) -> Generator[StringCommand, None, None]:
    """
    Wait until every node of a service has come as far as this one; fail where one of them does not.

    + service: its name
    + nodes: the nodes that run a rank of it
    + stage: which of their meetings in a run it is

    **Example:**

    .. code:: python

        meeting.met("chat", ("gpu-a", "gpu-b"), 1, name="Wait for all ranks of chat")
    """
    yield Meeting(service, nodes, stage)
