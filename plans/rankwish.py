"""What the operator wants of a service over several nodes: a part of the wishes.

Each of them runs one rank of it, and the first in the list rank 0, which alone answers clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

WORKED_OUT = {"nnodes": 1, "node-rank": 0}
"""Arguments that follow from ``nodes``, each with what it is for a service of one node."""


class _Service(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def port(self) -> int: ...
    @property
    def network(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...


def check_nodes(service: _Service) -> None:
    """Say what does not fit a service over several nodes. Raises ValueError."""
    given = {name.lstrip("-").replace("_", "-"): value for name, value in service.arguments.items()}
    for name, of_one in WORKED_OUT.items():
        if name in given and (service.nodes or given[name] not in (of_one, str(of_one))):
            raise ValueError(
                f"arguments: {name} is worked out: write nodes, the names of the nodes with rank 0's "
                "first, such as nodes: ['gpu-a', 'gpu-b']"
            )
    if not service.nodes:
        return
    if len(service.nodes) < 2 or len(set(service.nodes)) != len(service.nodes):
        raise ValueError(
            f"nodes: is {list(service.nodes)}: write two names or more, each once, with rank 0's first"
        )
    if service.network != "host":
        raise ValueError(
            "nodes: its ranks reach each other on the nodes' own network: write network: 'host'"
        )
    if "dist-init-addr" not in given:
        raise ValueError(
            f"nodes: write in arguments where its ranks meet: dist-init-addr, an address of "
            f"{service.nodes[0]} and a free port, such as 10.0.0.1:20000"
        )


def ranks_on(
    services: Sequence[_Service], node: str, *, door: bool
) -> tuple[list[int | None], list[str]]:
    """Return the rank that a node runs of each service, None where it is of one node alone, and
    what is wrong, by key. ``door``: the node has one."""
    ranks: list[int | None] = []
    messages = []
    for service in services:
        try:
            ranks.append(_rank_on(service, node))
        except ValueError as error:
            ranks.append(None)
            messages.append(f"services[{service.name}].{error}")
        if service.nodes and door:
            messages.append(
                f"door: stands before servers of one node, and {service.name} runs on "
                f"{', '.join(service.nodes)}: give the door to a node of its own, with servers: "
                f"['http://{service.nodes[0]}:{service.port}']"
            )
    return ranks, messages


def _rank_on(service: _Service, node: str) -> int | None:
    if not service.nodes:
        if service.rank is not None:
            raise ValueError("rank: is worked out from nodes: leave it out")
        return None
    if node not in service.nodes:
        raise ValueError(
            f"nodes: does not name {node}: name it, or leave {service.name} out of its data"
        )
    rank = service.nodes.index(node)
    if service.rank not in (None, rank):
        raise ValueError("rank: is worked out from nodes: leave it out")
    return rank
