"""Every argument list that is run on a node, built here and nowhere else.

Nothing secret ever goes into an argument list: arguments of the server stand in
``server.yaml``, the container's environment in a file only root can read.
"""

from __future__ import annotations

from collections.abc import Mapping

from plans import paths
from plans.deadlines import Deadlines
from plans.decision import Decision
from plans.wishes import Service


def docker_arguments(
    service: Service,
    decision: Decision,
    deployment: paths.Deployment,
    limits: Deadlines,
    mounts: Mapping[str, bool],
) -> tuple[str, ...]:
    """Return what ``docker run`` gets beyond the constant words of the unit.

    ``mounts`` maps each path that the container sees, at the same path, to
    whether it may write there.
    """
    access = decision.access.arguments if decision.access else ()
    return (
        *access,
        *decision.docker_arguments,
        f"--env-file={deployment.file(paths.CONTAINER_ENV)}",
        f"--publish={published(service)}:{service.port}",
        # The server's own processes share memory: NCCL and the detokenizer's queues.
        "--ipc=host",
        f"--shm-size={service.shm_size}",
        *(f"--ulimit={name}={value}" for name, value in service.ulimits.model_dump().items()),
        f"--stop-timeout={limits.stop}",
        *(
            f"--volume={path}:{path}:{'rw' if writable else 'ro'}"
            for path, writable in mounts.items()
        ),
        f"--label=sglang.service={service.name}",
        f"--label=sglang.deployment={deployment.number}",
        f"--label=sglang.release={decision.release}",
    )


def key_mount(path: str) -> tuple[str, ...]:
    """Return what lets the container read the configuration that holds its keys.

    ``--mount``, not ``--volume``: that one would make a directory of a file that is gone.
    """
    return (f"--mount=type=bind,source={path},target={path},readonly",)


def published(service: Service) -> str:
    """Return the address and port that Docker publishes: ``127.0.0.1:30000``."""
    return f"{bracketed(service.address)}:{service.port}"


def bracketed(address: str) -> str:
    """Return an address as it stands in a URL: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def probe_host(service: Service) -> str:
    """Return the host part of the URL by which the node itself reaches the service."""
    if service.address == "0.0.0.0":
        return "127.0.0.1"
    if service.address == "::":
        return "[::1]"
    return bracketed(service.address)
