"""The doors of an inventory, found in its data: also of nodes that this run does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from pyinfra.api import Inventory
from pyinfra.api.host import Host

from operations.realhost import real_host
from plans.doorwish import Door
from plans.fardoor import AtDoor, Doors, find_doors, strangers
from plans.plan import NodePlan
from plans.wishes import Service, WishesError, read_wishes

DATA_KEY = "sglang"
"""Key of a host's or group's data under which the operator's wishes stand."""

_found: WeakKeyDictionary[Inventory, Doors] = WeakKeyDictionary()


class DoorsUnread(Exception):
    """The data of a node with a door are wrong: nobody knows whom to tell. The text says which."""


def doors_before(host: Host, service: Service) -> tuple[AtDoor, ...]:
    """Return the doors that send requests to a service of a node. Raises DoorsUnread.

    A node is known by its name and its ``ssh_hostname``, a service by its ``address`` too.
    """
    real = real_host(host)
    inventory = real.inventory
    if inventory not in _found:
        _found[inventory] = _read(inventory)
    return _found[inventory].before(real.name, service, _addresses(real))


def with_strangers(plan: NodePlan, host: Host, door: Door | None) -> NodePlan:
    """Return a plan that names the servers of the node's door that nobody in the inventory knows."""
    if door is None or "://" not in str(door.servers):
        return plan
    caution = strangers(door, _listen(host.inventory))
    return plan if caution is None else replace(plan, cautions=(*plan.cautions, caution))


def _listen(inventory: Inventory) -> Iterator[tuple[str, int]]:
    """Give the addresses and ports of all services, by their data as they stand there."""
    for host in inventory:
        data = host.data.get(DATA_KEY)
        services = data.get("services") if isinstance(data, Mapping) else None
        for one in services if isinstance(services, list | tuple) else ():
            if isinstance(one, Mapping):
                port = one.get("port", Service.model_fields["port"].default)
                for address in (*_addresses(host), str(one.get("address"))):
                    yield address, port


def _addresses(host: Host) -> list[str]:
    named = host.data.get("ssh_hostname")
    return [host.name.rpartition("/")[2], *([str(named)] if named else [])]


def hosts_of_doors(inventory: Inventory) -> list[Host]:
    """Return the nodes whose doors have servers of other nodes: a run over those tells these."""
    found = []
    for host in inventory:
        data = host.data.get(DATA_KEY)
        door = data.get("door") if isinstance(data, Mapping) else None
        servers = door.get("servers") if isinstance(door, Mapping) else None
        if servers and "://" in str(servers):
            found.append(host)
    return found


def _read(inventory: Inventory) -> Doors:
    doors = {}
    for host in inventory:
        data = host.data.get(DATA_KEY)
        # Of a thousand nodes few have a door: only their data are read whole.
        if not isinstance(data, Mapping) or not data.get("door"):
            continue
        wishes = _wishes(host, data)
        if wishes.door is not None:
            doors[host.name] = (wishes.door, wishes.services)
    return find_doors(doors)


def _wishes(host: Host, data: Any) -> Any:
    try:
        return read_wishes(data, host.name)
    except WishesError as error:
        text = f"{host.name} has a door, and its data are wrong: {'; '.join(error.messages)}"
        raise DoorsUnread(text) from None
