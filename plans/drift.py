"""What somebody else did to a service since it was deployed, each in a few words.

``status`` names it, and the plan says what it does about it: nothing here changes
anything. What the survey could not read is no drift: the plan refuses elsewhere what
it must know.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from functools import cache

from facts.records import Listener, ServiceState, Survey, known
from plans import paths
from plans.deployment import TEMPLATES, unit_file
from plans.managed import has_sum, written_files
from plans.wheel.launch import wheel_unit_file
from plans.wheel.planned import not_whole

RUNS = ("active", "activating", "reloading")

OF_DOCKER = ("docker-proxy", "dockerd", "rootlesskit", "rootlessport")
"""Processes that listen on a published port for a container: ours."""

ADDED_TO = frozenset(
    {
        "Unit.Description", "Unit.Documentation", "Unit.Wants", "Unit.Requires", "Unit.After",
        "Unit.RequiresMountsFor", "Service.SyslogIdentifier", "Install.WantedBy",
    }
)  # fmt: skip
"""Directives of ours that another drop-in adds to, or that nothing depends on."""

UNDOING = frozenset(
    {
        # A stop that drains: how long, by which signal, and what else is run at it.
        "Service.TimeoutSec", "Service.KillSignal", "Service.SendSIGHUP", "Service.SendSIGKILL",
        "Service.ExecStop", "Unit.JobTimeoutSec", "Unit.JobRunningTimeoutSec",
        # A server that runs until it is told to end, and comes back when it crashes.
        "Service.RuntimeMaxSec", "Service.WatchdogSec", "Service.RemainAfterExit",
        "Service.RestartPreventExitStatus", "Unit.StopWhenUnneeded", "Unit.RefuseManualStart",
        "Unit.RefuseManualStop",
        # Docker's socket, and container.env, which only root reads.
        "Service.User", "Service.DynamicUser", "Service.PrivateNetwork", "Service.RootDirectory",
    }
)  # fmt: skip
"""Directives that are not set by us and undo what is (systemd.service(5), systemd.kill(5))."""


OPENED = frozenset(
    {
        # Lists to which another drop-in adds: what a service of the wheel runtime may reach.
        "Service.ReadWritePaths", "Service.BindPaths", "Service.BindReadOnlyPaths",
        "Service.DeviceAllow", "Service.InaccessiblePaths", "Service.TemporaryFileSystem",
        "Service.RestrictAddressFamilies", "Service.SystemCallFilter",
    }
)  # fmt: skip


@cache
def relied_on(runtime: str = "image") -> frozenset[str]:
    """Return the directives that the toolkit relies on, as ``Section.Key``."""
    drop_in = (TEMPLATES / "drop-in.conf.j2").read_text(encoding="utf-8")
    unit = unit_file().text
    if runtime == "wheel":
        unit = wheel_unit_file("x").text
        drop_in += "[Service]\n" + (TEMPLATES / "drop-in-wheel.conf.j2").read_text(encoding="utf-8")
    ours = {*_directives(unit), *_directives(drop_in)}
    return frozenset(ours - ADDED_TO - OPENED | UNDOING)


def _directives(text: str) -> Iterator[str]:
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif found := re.match(r"([A-Za-z]+)=", line):
            yield f"{section}.{found[1]}"


def overrides(state: ServiceState) -> dict[str, str]:
    """Return each foreign drop-in that sets what the toolkit relies on, and what that is."""
    found = {}
    relied = relied_on(state.launch.get("SGLANG_RUNTIME", "image"))
    for path, keys in sorted(state.drop_in_keys.items()):
        if not known(keys):
            found[path] = f"cannot be read ({keys}), so what it changes is unknown"
            continue
        bad = [key for key in keys if key in relied]
        if bad:
            found[path] = f"sets {', '.join(bad)}, which the toolkit relies on"
    return found


def overriding_unit(survey: Survey, state: ServiceState) -> str | None:
    """Return the path of a unit file that stands in the place of the toolkit's, or None."""
    path = state.fragment_path
    if state.load_state == "masked" or not known(path) or path == paths.UNIT:
        return None
    if path == paths.wheel_unit(state.name) and _is_ours(survey, state, path):
        return None
    return path


def _is_ours(survey: Survey, state: ServiceState, path: str) -> bool:
    """Say whether the toolkit wrote a service's own unit file: also in a run that was cut."""
    if state.launch.get("SGLANG_RUNTIME") == "wheel" or path in written_files(state):
        return True  # whether somebody edited it is another question
    there = survey.files.get(path)
    return there is not None and has_sum(there, wheel_unit_file(state.name).sha256)


def leads_nowhere(state: ServiceState) -> str | None:
    """Say that the link to the current deployment leads to one that is not there, or None."""
    if not known(state.current) or state.current in state.deployments:
        return None
    return f"current leads to deployment {state.current}, which is not there"


def other_deployment(state: ServiceState) -> str | None:
    """Say that what runs is of another deployment than the current one, or None.

    So it is after a run that was cut between the rename of the link and the restart.
    """
    container, current = state.container_deployment, state.current
    if state.active_state not in RUNS or not known(current):
        return None
    if known(container):
        if container == current:
            return None
        return f"its container still runs deployment {container}, the current one is {current}"
    runs = state.main_deployment
    if not known(runs) or runs == current:
        return None
    return f"it still runs deployment {runs}, the current one is {current}"


def other_image(survey: Survey, state: ServiceState) -> str | None:
    """Say that the running container is of another image than its deployment's, or None."""
    runs, wanted = state.container_image, state.launch.get("SGLANG_IMAGE", "")
    if state.active_state not in RUNS or not known(runs) or other_deployment(state):
        return None
    digest = wanted.rpartition("@")[2]
    ids = {
        image.config_digest
        for image in survey.docker.images
        if digest in (image.digest, image.config_digest)
    }
    # Where the store has no such image (it was deleted), nothing is known.
    if not ids or runs in ids or runs == digest:
        return None
    return f"its container runs another image ({runs[:19]}…) than its deployment says"


def restarted_by_hand(state: ServiceState) -> str | None:
    """Say that its container was restarted behind systemd's back, or None.

    Its process is then younger than the service's main one by more than the whole start took.
    Both are read from the kernel, and no clock is asked.
    """
    container, main = state.container_began, state.main_began
    began, active = state.start_began, state.active_began
    if state.active_state != "active":
        return None
    if not (known(container) and known(main) and known(began) and known(active)):
        return None
    start = (active - began) / 1e6
    if start <= 0 or (container - main) / 100 <= start:
        return None
    return "its container was restarted by hand, so its log no longer reaches the journal"


def container_stopped(survey: Survey, state: ServiceState) -> str | None:
    """Say that the container of an active service does not run (``docker pause``), or None."""
    is_now = survey.docker.containers.get(paths.container_of(state.name))
    if state.active_state != "active" or is_now is None or is_now == "running":
        return None
    return f"its container is {is_now}"


def restart_reasons(survey: Survey, state: ServiceState) -> list[str]:
    """Return why what runs is not what its deployment says: only a restart mends it."""
    said = (other_deployment(state), other_image(survey, state), restarted_by_hand(state))
    return [one for one in said if one is not None]


def image_deleted(survey: Survey, state: ServiceState) -> str | None:
    """Return the image of a service that Docker's store has no more, or None."""
    wanted = state.launch.get("SGLANG_IMAGE")
    if not wanted or not known(survey.docker.server_version):
        return None
    if "docker-images" in {name.split(" ")[0] for name in survey.unfinished}:
        return None
    repository, _, digest = wanted.rpartition("@")
    for image in survey.docker.images:
        if digest in (image.digest, image.config_digest):
            return None
        # Pulled by the digest of its index, and listed by its manifest's: the same image.
        if image.repository == repository and image.config_digest == state.container_image:
            return None
    return wanted


def environment_changed(survey: Survey, state: ServiceState) -> str | None:
    """Say what became of the environment that a service is started from, or None."""
    path = state.launch.get("SGLANG_ENVIRONMENT", "")
    above, _, key = path.rpartition("/")
    if above != paths.ENVIRONMENTS or survey.environments_unread is not None:
        return None
    there = survey.environments.get(key)
    if there is None:
        return f"environment gone: {path}"
    why = not_whole(key, there)
    return None if why is None else f"environment {path} is not whole: {why}"


def driver_moved(survey: Survey, state: ServiceState) -> tuple[str, str] | None:
    """Return the driver's major version at the build and now, where they differ."""
    driver = survey.nvidia.driver_version
    if not known(state.plan) or not known(driver):
        return None
    try:
        before = json.loads(state.plan)["build"]["driver_major"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    now = driver.split(".")[0]
    return (before, now) if isinstance(before, str) and before != now else None


def port_taken_over(survey: Survey, state: ServiceState, address: str = "") -> Listener | None:
    """Return who listens on the port of a service of ours that runs or starts, or None.

    ``address``: where the service listens; that of its deployment where none is given.
    """
    port = state.launch.get("SGLANG_PORT", "")
    if state.active_state not in RUNS or not known(survey.listeners):
        return None
    # On the host's network it is the server itself that listens.
    servers = ("sglang", "python") if "SGLANG_SCHEDULER_PORT" in state.launch else ()
    ours = address or state.launch.get("SGLANG_ADDRESS", "")
    for one in survey.listeners:
        if str(one.port) != port or not known(one.process) or one.process in OF_DOCKER:
            continue
        if overlap(one.address, ours) and not one.process.startswith(servers):
            return one
    return None


def overlap(one: str, other: str) -> bool:
    """Say whether a listener at one address keeps another from the same port at the other."""
    try:
        addresses = [
            ipaddress.ip_address(text.strip("[]").partition("%")[0]) for text in (one, other)
        ]
    except ValueError:
        return True  # what cannot be told apart is taken for the same
    return addresses[0] == addresses[1] or any(address.is_unspecified for address in addresses)
