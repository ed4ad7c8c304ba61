"""Every argument list that is run on a node, built here and nowhere else.

Nothing secret ever goes into an argument list: arguments of the server stand in
``server.yaml``, the container's environment in a file only root can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables of the node's own environment that the container which fetches weights gets too."""


def fetch_arguments(service: Service, home: str, endpoint: str | None) -> tuple[str, ...]:
    """Return what ``docker run`` gets for the container that fetches weights into ``home``.

    It has the node's network, and no GPU. Of root's privileges it keeps one: ``home`` may belong
    to another user.
    """
    return (
        *_aside(service, "host"),
        "--cap-drop=ALL",
        "--cap-add=DAC_OVERRIDE",
        "--security-opt=no-new-privileges",
        f"--volume={home}:{home}:rw",
        f"--env=HF_HOME={home}",
        *([f"--env=HF_ENDPOINT={endpoint}"] if endpoint else []),
    )


def check_arguments(
    service: Service, decision: Decision, limits: Deadlines, mounts: Mapping[str, bool]
) -> tuple[str, ...]:
    """Return what ``docker run`` gets for the container that checks weights.

    Its user and privileges are those of the service's own container, so that it reads what the
    server could read; it has no GPU, no port, no network and nothing of a deployment.
    """
    bare = replace(decision, access=None, docker_arguments=())
    deployment = paths.Deployment(service.name, 0)
    not_here = ("--publish=", "--label=", "--env-file=", "--network=", "--stop-timeout=")
    given = docker_arguments(service, bare, deployment, limits, mounts)
    return (
        *_aside(service, "none"),
        *(word for word in given if not word.startswith(not_here)),
    )


def _aside(service: Service, network: str) -> tuple[str, ...]:
    return (
        "--rm",
        "--init",
        "--pull=never",
        "--log-driver=none",
        f"--name={paths.weights_container(service.name)}",
        f"--network={network}",
        "--entrypoint=python3",
        # Where NVIDIA's runtime is Docker's default it would give every GPU of the node.
        "--env=NVIDIA_VISIBLE_DEVICES=void",
    )
