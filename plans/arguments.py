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
from plans.reads import read_by_arguments
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
    publish = (
        () if service.network == "host" else (f"--publish={published(service)}:{service.port}",)
    )
    return (
        *container_arguments(service, decision, deployment, mounts),
        *publish,
        f"--stop-timeout={limits.stop}",
        f"--label=sglang.service={service.name}",
        f"--label=sglang.deployment={deployment.number}",
        f"--label=sglang.release={decision.release}",
    )


CLOSED = (
    # No program of the image can gain rights by being run, whatever its mode bits say.
    "--security-opt=no-new-privileges",
    # Root of the container needs none of root's rights: it owns what it writes, and is given
    # pinned memory by --ulimit, which is all that IPC_LOCK is for. Without SYS_NICE SGLang
    # binds its workers to the CPUs of a GPU and leaves the memory policy alone (numa_utils.py);
    # without SYS_PTRACE only the stacks in the log of a crash are missing.
    "--cap-drop=ALL",
    # Shared memory of the service's own, gone with it; --shm-size says how much. SGLang's page
    # shows --ipc=host, of which all that a server needs is that /dev/shm is not 64 MB.
    "--ipc=private",
)
"""What every container runs with."""

READ_ONLY = (
    "--read-only",
    # With exec: what is compiled into /tmp is loaded from there (/tmp/symm_allocator for one).
    "--tmpfs=/tmp:exec,mode=1777",
)
"""What keeps the image as it is; all else that SGLang writes goes to its caches and weights."""


def container_arguments(
    service: Service,
    decision: Decision,
    deployment: paths.Deployment,
    mounts: Mapping[str, bool],
) -> tuple[str, ...]:
    """Return what decides how a container of the service reaches GPUs, memory and files.

    The canary's container gets the same, so that what it proves is true of the server's.
    """
    access = decision.access.arguments if decision.access else ()
    read = read_by_arguments(service)
    return (
        *access,
        *decision.docker_arguments,
        f"--env-file={deployment.file(paths.CONTAINER_ENV)}",
        f"--network={service.network}",
        *CLOSED,
        *(READ_ONLY if service.read_only else ()),
        f"--shm-size={service.shm_size}",
        *(f"--ulimit={name}={value}" for name, value in service.ulimits.model_dump().items()),
        # Of what an argument names --volume would make a directory where nothing is.
        *(
            f"--mount=type=bind,source={path},target={path},readonly"
            if path in read
            else f"--volume={path}:{path}:{'rw' if writable else 'ro'}"
            for path, writable in mounts.items()
        ),
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


PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables of the node's own environment that the container which fetches weights gets too."""


def fetch_arguments(service: Service, home: str, endpoint: str | None) -> tuple[str, ...]:
    """Return what ``docker run`` gets for the container that fetches weights into ``home``.

    It has the node's network, and no GPU. Of root's privileges it keeps one: ``home`` may belong
    to another user.
    """
    return (
        *_aside(service, "host"),
        *CLOSED,
        *READ_ONLY,
        "--cap-add=DAC_OVERRIDE",
        f"--volume={home}:{home}:rw",
        f"--env=HF_HOME={home}",
        *([f"--env=HF_ENDPOINT={endpoint}"] if endpoint else []),
    )


def check_arguments(
    service: Service, decision: Decision, mounts: Mapping[str, bool]
) -> tuple[str, ...]:
    """Return what ``docker run`` gets for the container that checks weights.

    Its user and privileges are those of the service's own container, so that it reads what the
    server could read; it has no GPU, no port, no network and nothing of a deployment.
    """
    bare = replace(decision, access=None, docker_arguments=())
    given = container_arguments(service, bare, paths.Deployment(service.name, 0), mounts)
    return (
        *_aside(service, "none"),
        *(word for word in given if not word.startswith(("--env-file=", "--network="))),
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
