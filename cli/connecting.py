"""Connects to every node of a run side by side; each within the time that is its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gevent
from pyinfra.api import Inventory, State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import BaseStateCallback

from cli.bounds import Bounds, TookTooLong
from cli.events import Events
from operations.becoming import Trial, become
from plans.secrets import Secret


class Watcher(BaseStateCallback):
    """Keeps why a connection failed, which pyinfra otherwise only logs."""

    def __init__(self) -> None:
        self.errors: dict[Host, BaseException] = {}

    def host_connect_error(  # type: ignore[override]  # pyinfra calls it on the instance
        self, state: State, host: Host, error: Any
    ) -> None:
        self.errors[host] = error


def let_become(inventory: Inventory, passwords: Mapping[str, Secret]) -> None:
    """Give every node its password of sudo; those that have the same try it one after another."""
    trials: dict[Secret, Trial] = {}
    for host in inventory:
        password = passwords.get(host.name)
        become(host, password, trials.setdefault(password, Trial()) if password else None)


def connect_all(
    state: State, watcher: Watcher, bounds: Bounds, events: Events
) -> dict[Host, float]:
    """Connect to every node side by side; what goes wrong with one is kept, and stops no other.

    pyinfra's own ends the run of all where a connector raises what it did not expect, such as for
    a private key that is not there; and it waits for all as long as the slowest takes, such as a
    port that takes connections and says nothing. Returns the seconds that each node took: they
    are of its own time, and one that has none left is given up.
    """
    assert state.pool is not None
    spent: dict[Host, float] = {}

    def one(host: Host) -> None:
        began = time.monotonic()
        events.tell("connecting", node=host.name)
        try:
            with gevent.Timeout(bounds.node_s):
                host.connect()
        except gevent.Timeout:
            watcher.errors[host] = TookTooLong(bounds.node_s)
            _leave(host)
        except Exception as error:
            watcher.errors[host] = error
        finally:
            spent[host] = time.monotonic() - began
        if host.connected:
            events.tell("connected", node=host.name)
        else:
            events.tell("read", node=host.name, ok=False, seconds=round(spent[host], 3))

    hosts = [host for host in state.inventory if state.is_host_in_limit(host)]
    gevent.joinall([state.pool.spawn(one, host) for host in hosts])
    for host in hosts:
        if host.connected:
            state.activate_host(host)
    failed = {host for host in hosts if not host.connected}
    try:
        state.fail_hosts(failed, activated_count=len(hosts))  # type: ignore[no-untyped-call]
    except PyinfraError:  # "No hosts remaining!": each has its reason
        if not watcher.errors:
            raise
    return spent


def _leave(host: Host) -> None:
    """Close what is half open towards a node, without waiting for that."""
    client = getattr(host.connector, "client", None)
    if client is not None:
        gevent.spawn(client.close)
