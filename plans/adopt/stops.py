"""How a hand-made server is stopped, and what becomes of the requests it answers then."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from plans.adopt.records import Command, Container
from plans.adopt.unit import Unit

PATIENCE_S = 600
"""Seconds that a stop waits for requests in flight; Docker alone kills after 10."""

_KILLS = 10
"""Seconds after which ``docker stop`` kills, where it is not told another time."""

_FIRST = (
    "take the node out of its load balancer first: while it drains SGLang goes on taking requests"
)


def stop_container(
    name: str,
    container: Container,
    labels: Mapping[str, str],
    command: Command,
    pid: int | None,
) -> tuple[tuple[str, ...], str]:
    """Return the commands that stop a container for good, and what becomes of its requests.

    ``pid`` is the server's process on the node, where it was seen.
    """
    stops = []
    if command.by_shell and pid is not None:
        # A shell that waits for the server hands no signal on.
        stops.append(f"kill -TERM {pid}")
    project = labels.get("com.docker.compose.project")
    service = labels.get("com.docker.compose.service")
    if project and service:
        files = labels.get("com.docker.compose.project.config_files", "")
        compose = ["docker", "compose", "--project-name", project]
        compose += [word for file in filter(None, files.split(",")) for word in ("--file", file)]
        stop = [*compose, "stop", "--timeout", str(PATIENCE_S), service]
    else:
        stop = ["docker", "stop", f"--time={PATIENCE_S}", name]
    if container.restart not in ("no", ""):
        # Else the daemon starts it again with the node.
        stops.append(shlex.join(["docker", "update", "--restart=no", name]))
    stops.append(shlex.join(stop))
    if command.by_shell and pid is None:
        ends = (
            "a shell is the container's first process and hands the signal on to nobody: requests "
            "in flight are lost"
        )
    else:
        ends = f"requests in flight are finished, within {PATIENCE_S} s; {_FIRST}"
    return tuple(stops), ends


def stop_unit(name: str, unit: Unit, pid: int | None) -> tuple[tuple[str, ...], str]:
    """Return the commands that stop a unit for good, and what becomes of its requests."""
    stop = shlex.join(["systemctl", "disable", "--now", name])
    if unit.run is not None:
        # docker run hands the signal on, and the container ends by itself though the unit does not wait.
        ends = (
            f"the unit's own ExecStop= stops the container, and Docker kills it {_KILLS} s later "
            "where that says nothing else: requests in flight may be lost"
            if unit.stops
            else "requests in flight are finished; wait until docker ps no longer lists its container. "
            + _FIRST
        )
        return (stop,), ends
    if unit.kill_mode in ("mixed", "process"):
        ends = f"requests in flight are finished, within the unit's TimeoutStopSec=; {_FIRST}"
        return (stop,), ends
    if unit.restart != "always" and pid is not None:
        ends = f"requests in flight are finished; wait until the process has ended. {_FIRST}"
        return (f"kill -TERM {pid}", stop), ends
    ends = (
        f"KillMode={unit.kill_mode} ends every process of it at once: requests in flight are lost, "
        "so take the node out of its load balancer and wait before"
    )
    return (stop,), ends


def stop_process(pid: int) -> tuple[tuple[str, ...], str]:
    """Return the command that stops a process, and what becomes of its requests."""
    ends = f"requests in flight are finished; wait until it has ended. {_FIRST}"
    return (f"kill -TERM {pid}",), ends
