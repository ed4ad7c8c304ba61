"""What a service's wishes mean to the wheel runtime, which has no container."""

from __future__ import annotations

from plans.refusals import Caution
from plans.wishes import Service


def as_wheel(service: Service) -> Service:
    """Return a service as it runs without a container: on the node's own network.

    Its address is then the server's own, and its scheduler's port is pinned.
    """
    return service.model_copy(update={"network": "host", "read_only": True})


def said_of_wishes(service: Service) -> list[Caution]:
    """Return what of a service's wishes only a container could keep; nothing is silent."""
    said = []
    if service.network == "bridge" and "network" in service.model_fields_set:
        said.append("network: bridge does not apply, the server listens on the node's own network")
    if not service.read_only:
        said.append(
            "read_only: false does not apply, the unit is closed either way; open a path with "
            f"ReadWritePaths= (systemctl edit sglang@{service.name})"
        )
    return [Caution("WISH_OF_CONTAINER", f"runtime wheel: {one}", service.name) for one in said]
