"""Checks that a prefill/decode pair can work: each half on its node, and the door that serves both."""

from __future__ import annotations

import ipaddress
import re

from plans.doorwish import Door, server_names
from plans.findings import Findings
from plans.network import argument
from plans.pair import half_of
from plans.refusals import Caution
from plans.wishes import Service, Wishes

CODE = "PREFILL_DECODE"

TRANSFERS = {"mooncake": "mooncake-transfer-engine", "nixl": "nixl"}
"""Packages that hand over the cache, by ``disaggregation-transfer-backend`` (``mooncake`` unless it is
given): SGLang's images hold them, and none of its requirements names one (METADATA of 0.5.23)."""


def check_half(service: Service, wishes: Wishes, found: Findings) -> None:
    """Refuse a half that could never work; nothing where a service answers alone."""
    half = half_of(service)
    if half is None:
        return
    if service.kind != "generate":
        found.refuse(
            CODE,
            service.name,
            f"{service.name} is a {half} half, and its kind is {service.kind}",
            "a model that generates: nothing else has a cache to hand over",
            f"leave disaggregation-mode out of arguments of {service.name}",
        )
    if service.network != "host":
        found.refuse(
            CODE,
            service.name,
            f"{service.name} is a {half} half in a network of its own container",
            "the node's own network: the halves reach each other at ports that they choose "
            "themselves, and over RDMA where it is",
            f"network: 'host' in {service.name}",
        )
    if wishes.door is None:
        found.cautions.append(
            Caution(
                CODE,
                f"{service.name} is a {half} half and answers nobody alone: clients need a door with "
                "pd_disaggregation, on this node or another of the inventory, or a sglang-router of "
                "your own with --pd-disaggregation",
                service.name,
            )
        )


def check_transfer(service: Service, requirements: str, found: Findings) -> None:
    """Refuse a half whose lock of packages lacks what hands over the cache: it would end at its start.

    ``requirements``: the lock's text, of lines such as ``nixl==1.0.0``.
    """
    backend = str(argument(service, "disaggregation-transfer-backend") or "mooncake")
    package = TRANSFERS.get(backend)
    if half_of(service) is None or package is None:
        return
    if re.search(rf"^{package}[a-z0-9-]*==", requirements, re.MULTILINE) is None:
        found.refuse(
            CODE,
            service.name,
            f"{service.name} hands its cache over by {backend}, and the lock of packages has no {package}",
            f"{package}, which SGLang's images hold and its packages do not ask for",
            f"runtime: 'image' in {service.name}, or a wheel_lock of yours that has it",
        )


def check_door_of_pairs(door: Door, services: tuple[Service, ...], found: Findings) -> None:
    """Refuse a door that gives requests to one server where two are needed, or the other way round."""
    names = server_names(door, services)
    local = [one for one in services if one.name in names]
    others = [url for url in names.values() if url is not None]
    for one in local:
        half = half_of(one)
        if half and not door.pd_disaggregation:
            found.refuse(
                CODE,
                one.name,
                f"{one.name} is a {half} half, and the door gives each request to one server",
                "a door that gives each to a prefill and a decode half",
                "pd_disaggregation: True under door",
            )
        elif not half and door.pd_disaggregation:
            found.refuse(
                CODE,
                one.name,
                f"{one.name} answers alone, and the door gives each request to two halves",
                "halves alone as servers of such a door",
                "leave it out of servers under door, or write arguments "
                f"{{'disaggregation-mode': 'prefill'}} or 'decode' in {one.name}",
            )
        elif half and others and not _others_reach(one.address):
            found.refuse(
                CODE,
                one.name,
                f"{one.name} is a {half} half on {one.address}, and the door has servers of other "
                "nodes",
                "an address at which its other halves reach it",
                f"address: '10.0.0.8' in {one.name}, as this node has it on the network between them",
            )
    if door.pd_disaggregation and not others:
        halves = {half_of(one) for one in local}
        for half in ("prefill", "decode"):
            if half not in halves:
                found.refuse(
                    CODE,
                    None,
                    f"the door's servers are {', '.join(names)}: none is a {half} half",
                    "a prefill and a decode half at the least",
                    f"a service with arguments {{'disaggregation-mode': '{half}'}}, or servers under "
                    "door with the address of one on another node",
                )


def _others_reach(address: str) -> bool:
    """Say whether other nodes reach a server by this address: not loopback, and not all of a node's,
    which the door of that node would know as loopback."""
    found = ipaddress.ip_address(address)
    return not (found.is_loopback or found.is_unspecified)
