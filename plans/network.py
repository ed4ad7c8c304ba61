"""The network of a service's container: Docker's bridge, or the node's own."""

from __future__ import annotations

from plans.wishes import Service
from releases.table import normalise_flag

FIRST_SCHEDULER_PORT = 22000
SCHEDULER_PORTS = 8000
"""Where SGLang itself looks for the scheduler's port: 22000 to 29999.

``get_free_port_below_ephemeral`` of srt/utils/network.py in the 0.5.22 wheel; the
kernel gives none of them to outgoing connections (they begin at 32768).
"""

DEFAULT_PORT = 30000


def scheduler_port(service: Service) -> int:
    """Return the port on which the scheduler of a service on the host's network listens.

    It is the operator's ``nccl-port``, or one that follows from the service's own
    port, so that no other service's change moves it.
    """
    given = argument(service, "nccl-port")
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return FIRST_SCHEDULER_PORT + (service.port - DEFAULT_PORT) % SCHEDULER_PORTS


def beside_the_firewall(service: Service) -> str:
    """Return what a published port does to a firewall, as the end of a sentence."""
    if service.network == "host":
        return ""
    return "; ports that Docker publishes are not stopped by ufw"


def argument(service: Service, flag: str) -> object:
    """Return what the operator gives the server for a flag, however it is written; or None."""
    given = {normalise_flag(name): value for name, value in service.arguments.items()}
    return given.get(flag)
