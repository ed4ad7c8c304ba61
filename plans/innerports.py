"""The ports that a service has beside its own, where it is on the node's own network."""

from __future__ import annotations

from dataclasses import dataclass

from plans.network import scheduler_port
from plans.pair import bootstrap_port
from plans.wishes import Service


@dataclass(frozen=True)
class InnerPort:
    """A port that a service on the node's own network has beside its own."""

    what: str
    port: int
    flag: str  # that names another one
    variable: str  # of launch.env, which says which one the running service has


def inner_ports(service: Service) -> tuple[InnerPort, ...]:
    """Return the ports that a service listens on beside its own, on the node's own network."""
    found = [InnerPort("scheduler", scheduler_port(service), "nccl-port", "SGLANG_SCHEDULER_PORT")]
    meets = bootstrap_port(service)
    if meets is not None:
        flag = "disaggregation-bootstrap-port"
        found.append(InnerPort("bootstrap server", meets, flag, "SGLANG_BOOTSTRAP_PORT"))
    return tuple(found)
