"""Doors that stand before servers of several nodes: which ones to tell that a server leaves.

A door names its servers: services of its own node, and addresses of others'. Here those addresses
are found again among the nodes of the inventory, so that whoever restarts a server knows the doors
that send it requests, and on which node each of them is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plans import paths
from plans.doorwish import Door, server_names
from plans.launch import render
from plans.refusals import Caution
from plans.wishes import Service

LEASE_S = 600
"""Seconds that a server may answer while it is out before its door lets it back by itself.

Whoever took it out lets it back within a verify and a proof, and for their part 300 s are the most
that one question of them may take. This is for a run that was cut.
"""

WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class AtDoor:
    """A server as a door has it."""

    node: str  # where the door is
    server: str  # its name there: a service of that node, or HOST:PORT
    of_node: bool  # of the door's own node, which also tells it by itself


@dataclass(frozen=True)
class Doors:
    """The doors of an inventory, by the servers that they have."""

    by_service: Mapping[tuple[str, str], tuple[AtDoor, ...]] = field(default_factory=dict)
    by_address: Mapping[tuple[str, int], tuple[AtDoor, ...]] = field(default_factory=dict)

    def before(
        self, node: str, service: Service, addresses: Iterable[str] = ()
    ) -> tuple[AtDoor, ...]:
        """Return the doors that send requests to a service of a node, each once.

        ``addresses``: by which others know the node, beside the one where the service listens.
        """
        known = [*addresses, *([service.address] if service.address not in WILDCARDS else [])]
        found = [*self.by_service.get((node, service.name), ())]
        for address in known:
            found += self.by_address.get((_plain(address), service.port), ())
        return tuple(dict.fromkeys(found))


def find_doors(nodes: Mapping[str, tuple[Door, tuple[Service, ...]]]) -> Doors:
    """Return the doors of nodes, each with the services of its own node.

    A door with one server alone, of its own node, is not among them: that one comes back with its
    first answer, by its own node, as requests wait for it.
    """
    by_service: dict[tuple[str, str], tuple[AtDoor, ...]] = {}
    by_address: dict[tuple[str, int], tuple[AtDoor, ...]] = {}
    for node, (door, services) in nodes.items():
        names = server_names(door, services)
        for name, url in names.items():
            one = AtDoor(node, name, url is None)
            if url is not None:
                key = _address(name)
                by_address[key] = (*by_address.get(key, ()), one)
            elif len(names) > 1:
                by_service[node, name] = (*by_service.get((node, name), ()), one)
    return Doors(by_service, by_address)


def strangers(door: Door, known: Iterable[tuple[str, int]]) -> Caution | None:
    """Return what to say of servers whose addresses are none of those where services are known to
    listen; None where all are."""
    there = {(_plain(address), port) for address, port in known}
    found = [
        name
        for name, url in server_names(door, ()).items()
        if url is not None and _address(name) not in there
    ]
    if not found:
        return None
    return Caution(
        "DOOR_NOT_TOLD",
        f"the door has {', '.join(found)}, which no service of this inventory is known by: it is "
        "not told when that stops; a service is known by its node's name or ssh_hostname, or its "
        "address, with its port",
    )


def _address(name: str) -> tuple[str, int]:
    address, _, port = name.rpartition(":")
    return _plain(address), int(port)


def _plain(address: str) -> str:
    """Return an address as it is compared: names in small letters, numbers in their short form."""
    try:
        return str(ipaddress.ip_address(address.strip("[]")))
    except ValueError:
        return address.lower().rstrip(".")


def leave(one: AtDoor, seconds: float) -> str:
    """Return the program that takes a server out of a door's rotation, on the door's node.

    It ends with 0 where no door runs there, or it does not have that server: nobody is to be told.
    The server stays out until ``come_back``, or until it has answered for so many seconds since it
    was away; where the door has no other in rotation, until it answers again.
    """
    return _program(one, seconds=round(seconds))


def come_back(one: AtDoor) -> str:
    """Return the program that lets a server back in, and waits until the door finds it healthy.

    It ends with 1 where the door had it in rotation before and does not find it now.
    """
    return _program(one, seconds=None)


def _program(one: AtDoor, seconds: int | None) -> str:
    return render(
        "door-tell.sh.j2",
        unit=paths.DOOR_UNIT_NAME,
        out=paths.DOOR_OUT,
        server=one.server,
        of_node=one.of_node,
        seconds=seconds,
    )
