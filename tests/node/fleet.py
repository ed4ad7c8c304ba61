"""Three nodes with a server each, one door before them, and a load that the door's view is read under.

The door is on the last node: the servers of the first two are other nodes' to it.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry
from .load import Load, Request, summary
from .site import Ran, Site, service

PORT = 8000
KEY = "a-key-of-the-door-0123456789"


class FleetSite(Site):
    """An inventory whose last node has the door: each host has data of its own."""

    def data_of(self, node: Node) -> dict[str, Any]:
        """Return what one node shall serve: a server alone on the nodes' own network."""
        services = [{**one, "address": node.address} for one in self.data["services"]]
        data = {**self.data, "services": services}
        door = data.pop("door")
        if node is not self.nodes[-1]:
            return data
        others = [f"http://{one.address}:30000" for one in self.nodes[:-1]]
        return {**data, "door": {**door, "servers": ["chat", *others]}}

    def write(self) -> None:
        """Write the inventory anew from ``data``."""
        hosts = []
        for node in self.nodes:
            name, keys = node.pyinfra()
            hosts.append((name, {**keys, "sglang": self.data_of(node)}))
        self.inventory.write_text(f"gpu_nodes = ({hosts!r}, {{}})\n", encoding="utf-8")


def fleet_nodes(node_factory: Callable[..., Node]) -> Iterator[list[Node]]:
    """Give three hosts with Docker and both images in their stores; end them after."""
    nodes = [node_factory(f"fleet-{one}", images=True) for one in "abc"]
    yield nodes
    for node in nodes:
        node.discard()


def fleet_site(folder: Any, nodes: list[Node], registry: Registry, mirror: Mirror) -> FleetSite:
    """Return the inventory of three nodes with one service each, and a door with a key."""
    door = {
        "host": "0.0.0.0",
        "port": PORT,
        "keys": [{"env": "DOOR_KEY"}],
        "wait": 600,
        "lock": str(mirror.locks["door"]),
    }
    data = {
        "services": [service()],
        "registry": {"mirrors": {"docker.io": registry.url}},
        "mirrors": mirror.keys,
        "door": door,
    }
    return FleetSite(folder, nodes, data, environment={"DOOR_KEY": KEY})


@dataclass
class Rotation:
    """How many servers the door has in rotation, by its own word, asked several times a second."""

    url: str
    seen: list[int | None] = field(default_factory=list)  # None: it did not answer
    ending: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Ask until it is told to stop."""
        while not self.ending.wait(0.2):
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    self.seen.append(json.load(answer)["servers"])
            except urllib.error.HTTPError as error:
                self.seen.append(json.load(error)["servers"])
            except OSError:
                self.seen.append(None)

    @property
    def least(self) -> int:
        """The fewest that it ever had; -1 where it once did not answer."""
        return min(-1 if one is None else one for one in self.seen)


@dataclass
class Loaded:
    """What came of something that was done under load."""

    ran: Ran
    ledger: list[Request]
    rotation: Rotation
    seconds: float

    @property
    def ends(self) -> dict[str, Any]:
        """The ledger in figures."""
        return summary(self.ledger)

    @property
    def not_answered(self) -> list[Request]:
        """The requests that were not answered whole."""
        return [one for one in self.ledger if one.end != "answered"]

    def line(self, what: str) -> str:
        """Say it in a line that a person reads."""
        return (
            f"{what} in {self.seconds:.0f} s: {self.ends}, in rotation never fewer than "
            f"{self.rotation.least} of {len(self.rotation.seen)} looks"
        )


def under_load(door: Node, act: Callable[[], Ran], clients: int = 3) -> Loaded:
    """Do something while clients send to the door and its rotation is watched."""
    url = f"http://{door.address}:{PORT}"
    load = Load(url, "tiny", clients, seconds=1500, most=20_000, timeout_s=900, key=KEY)
    rotation = Rotation(url)
    threads = [threading.Thread(target=load.run), threading.Thread(target=rotation.watch)]
    for one in threads:
        one.start()
    try:
        time.sleep(4)
        began = time.monotonic()
        ran = act()
        seconds = time.monotonic() - began
        time.sleep(4)
    finally:
        load.stopping.set()
        threads[0].join()
        rotation.ending.set()
        threads[1].join()
    return Loaded(ran, load.ledger, rotation, seconds)
