"""What keeps a service closed, and what the plan says of each thing that is opened.

A service listens on loopback, in a network of its own, unless its wishes open it.
"""

from __future__ import annotations

from facts.records import Listener, ServiceState, Survey, known
from plans.findings import Findings
from plans.innerports import InnerPort, inner_ports
from plans.network import argument, scheduler_port
from plans.refusals import Caution
from plans.wishes import Service, Wishes


def check_closed(
    service: Service, wishes: Wishes, survey: Survey, state: ServiceState, found: Findings
) -> None:
    """Say what of a service is open, and refuse what cannot be kept apart."""
    if not service.read_only:
        found.cautions.append(
            Caution(
                "WRITABLE_ROOT",
                f"read_only is off: {service.name} may change the files of its container",
                service.name,
            )
        )
    if service.network == "host":
        _check_host_network(service, wishes, survey, state, found)


def _check_host_network(
    service: Service, wishes: Wishes, survey: Survey, state: ServiceState, found: Findings
) -> None:
    port = scheduler_port(service)
    found.cautions.append(
        Caution(
            "HOST_NETWORK",
            f"{service.name} uses the node's own network: besides port {service.port} its "
            f"scheduler listens on all addresses, port {port}, and asks for no key; keep others "
            f"from it, for example: sudo ufw deny {port}/tcp",
            service.name,
        )
    )
    replicas = argument(service, "dp-size") or argument(service, "data-parallel-size")
    if isinstance(replicas, int) and replicas > 1 and not argument(service, "enable-dp-attention"):
        found.refuse(
            "HOST_NETWORK_REPLICAS",
            service.name,
            f"network host with dp-size {replicas}: every replica's scheduler wants a port of its "
            "own, and one is pinned",
            "one scheduler per service on the host's network",
            f"leave network of {service.name} out, or make it {replicas} services with one "
            "replica each",
        )
    for inner in inner_ports(service):
        taken = _taken_by(inner, service, wishes, survey, state)
        if taken:
            found.refuse(
                "PORT_TAKEN",
                service.name,
                f"{taken}, where the {inner.what} of {service.name} would listen",
                f"port {inner.port} free for the {inner.what} of {service.name}",
                f"give {service.name} another one: arguments {{'{inner.flag}': PORT}}",
            )


def _taken_by(
    inner: InnerPort, service: Service, wishes: Wishes, survey: Survey, state: ServiceState
) -> str | None:
    port = inner.port
    if service.port == port:
        return f"{service.name} itself has port {port}"
    if wishes.door is not None and wishes.door.port == port:
        return f"the door has port {port}"
    for own in inner_ports(service):
        if own.what != inner.what and own.port == port:
            return f"the {own.what} of {service.name} has port {port}"
    for other in wishes.services:
        if other.name == service.name:
            continue
        if other.port == port:
            return f"{other.name} has port {port}"
        for its in inner_ports(other) if other.network == "host" else ():
            if its.port == port:
                return f"the {its.what} of {other.name} has port {port}"
    ours = state.active_state in ("active", "activating", "deactivating", "reloading")
    if ours and state.launch.get(inner.variable) == str(port):
        return None
    listeners: tuple[Listener, ...] = survey.listeners if known(survey.listeners) else ()
    for listener in listeners:
        if listener.port == port:
            who = listener.process if known(listener.process) else "a process"
            return f"{who} listens on {listener.address} port {port}"
    return None
