"""The program that reads a node, and what it printed, read into the servers that were found."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plans.adopt.commands import server_in
from plans.adopt.docker_run import read_run
from plans.adopt.inspect import read_inspect
from plans.adopt.records import Command, Found, NotReadable
from plans.adopt.stops import stop_container, stop_process, stop_unit
from plans.adopt.unit import Unit, read_unit
from plans.launch import TEMPLATES
from plans.paths import DEPLOYMENTS

_MAIN = re.compile(r"(?:python[0-9.]*|sglang)$")


class NotGathered(ValueError):
    """What the node printed is not what the program prints."""


@dataclass(frozen=True)
class Process:
    """A process that runs a server."""

    pid: int
    parent: int
    belongs: str  # to a container by its id, to a unit by its name, or "-"
    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str | None
    version: str | None

    @property
    def command(self) -> Command | None:
        """The server that it runs itself, and not through a shell or client."""
        first = self.words[0].rsplit("/", 1)[-1] if self.words else ""
        return server_in(self.words) if _MAIN.match(first) else None


@dataclass
class Gathered:
    """Everything that the program told."""

    processes: list[Process] = field(default_factory=list)
    containers: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = field(
        default_factory=dict
    )
    units: dict[str, tuple[int, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def program() -> str:
    """Return the program that reads a node; it changes nothing."""
    return (TEMPLATES / "adopt.sh").read_text(encoding="utf-8")


def read_gathered(lines: Iterable[str]) -> Gathered:
    """Return what the program printed. Raises NotGathered where it did not come to its end."""
    found = Gathered()
    begun = ended = False
    for line in lines:
        kind, *fields = line.split(" ")
        begun = begun or line == "@adopt 1"
        ended = ended or line == "@end"
        if not begun:
            continue
        try:
            _take(found, kind, fields)
        except (ValueError, IndexError, binascii.Error):
            raise NotGathered(
                f"a line of what was read there cannot be understood: {kind}"
            ) from None
    if not begun or not ended:
        raise NotGathered("what serves there could not be read to its end")
    # One that another of them started is a worker that did not rename itself.
    pids = {one.pid for one in found.processes}
    found.processes = [one for one in found.processes if one.parent not in pids]
    return found


def _take(found: Gathered, kind: str, fields: list[str]) -> None:
    if kind == "process":
        pid, parent, belongs, words, environment, directory, version = fields
        pairs = [one.partition("=") for one in _text(environment).split("\0")]
        one = Process(
            int(pid),
            int(parent),
            belongs,
            tuple(_text(words).rstrip("\0").split("\0")),
            {name: value for name, equals, value in pairs if equals},
            _text(directory)[:-1] or None,
            _text(version)[:-1] or None,
        )
        if one.command is not None:
            found.processes.append(one)
    elif kind == "container":
        identity, whole, image = fields
        own = _text(image)[:-1]
        found.containers[identity] = (json.loads(_text(whole)), json.loads(own) if own else None)
    elif kind == "unit":
        name, pid, whole = fields
        found.units[name] = (int(pid or 0), _text(whole))
    elif kind == "file":
        found.files[_text(fields[0])] = _text(fields[1])
    elif kind == "problem":
        found.problems.append(f"{fields[0]}: {_text(fields[1])[:200]}")


def _text(packed: str) -> str:
    return base64.b64decode(packed, validate=True).decode("utf-8", "replace")


def servers(found: Gathered) -> list[Found]:
    """Return the servers of SGLang that run by hand: those of the toolkit's own are left out."""
    out: list[Found] = []
    units = {
        name: (pid, read_unit(text, found.files, name))
        for name, (pid, text) in found.units.items()
        if f"{DEPLOYMENTS}/" not in text
    }
    in_containers: dict[str, Found] = {}
    for identity, (raw, image) in found.containers.items():
        labels = (raw.get("Config") or {}).get("Labels") or {}
        if "sglang.deployment" in labels or "sglang.service" in labels:
            continue
        one = _container(identity, raw, image, found)
        if one is not None:
            in_containers[one.name] = one
    for name, (pid, unit) in units.items():
        owned = _run_by(unit, in_containers)
        if owned is not None:
            del in_containers[owned.name]
            stop, ends = stop_unit(name, unit, None)
            # The container tells more than the unit's words: the image's own, and what Docker made.
            out.append(
                replace(owned, kind="unit", name=name, where=f"unit {name} ({owned.where})", stop=stop, ends=ends,
                        lost=(*owned.lost, *unit.lost))
            )  # fmt: skip
            continue
        process = next((one for one in found.processes if one.belongs == name), None)
        command = process.command if process else unit.command
        if command is None:
            continue
        stop, ends = stop_unit(name, unit, pid or None)
        out.append(
            Found(
                "unit",
                name,
                f"unit {name}",
                _with(command, unit.command),
                {**unit.environment},
                version=process.version if process else None,
                home=process.environment.get("HOME") if process else None,
                directory=process.directory if process else unit.directory,
                lost=unit.lost,
                stop=stop,
                ends=ends,
            )
        )
    out += in_containers.values()
    taken = {*found.containers, *found.units}
    for process in found.processes:
        if process.belongs not in taken and not process.belongs.startswith("sglang@"):
            command = process.command
            assert command is not None
            stop, ends = stop_process(process.pid)
            out.append(
                Found(
                    "process",
                    str(process.pid),
                    f"process {process.pid}",
                    command,
                    process.environment,
                    version=process.version,
                    home=process.environment.get("HOME"),
                    directory=process.directory,
                    stop=stop,
                    ends=ends,
                )
            )
    return sorted(out, key=lambda one: (one.kind, one.name))


def servers_of_inspect(inspected: Iterable[Mapping[str, Any]]) -> list[Found]:
    """Return the servers of what ``docker inspect`` printed, with nothing else of the node."""
    given = {str(raw.get("Id") or number): (raw, None) for number, raw in enumerate(inspected)}
    return servers(Gathered(containers=dict(given)))


def _container(
    identity: str, raw: Mapping[str, Any], image: Mapping[str, Any] | None, found: Gathered
) -> Found | None:
    container = read_inspect(raw, image)
    process = next((one for one in found.processes if one.belongs == identity), None)
    said = server_in(container.words, container.environment)
    command = process.command if process else said
    if command is None:
        return None
    command = _with(command, said)
    name = str(raw.get("Name") or identity[:12]).removeprefix("/")
    labels = (raw.get("Config") or {}).get("Labels") or {}
    pid = process.pid if process else None
    stop, ends = stop_container(name, container, labels, command, pid)
    project = labels.get("com.docker.compose.project")
    where = f"container {name}"
    if project:
        where += f" (compose project {project}, service {labels.get('com.docker.compose.service')})"
    return Found(
        "container",
        name,
        where,
        command,
        container=container,
        container_name=name,
        version=process.version if process else None,
        directory=(raw.get("Config") or {}).get("WorkingDir") or None,
        stop=stop,
        ends=ends,
    )


def _with(command: Command, said: Command | None) -> Command:
    """Return the server as it runs, with what its starter said around it."""
    if said is None:
        return command
    return replace(
        command,
        environment={**said.environment, **command.environment},
        by_shell=said.by_shell,
        lost=(*said.lost, *command.lost),
    )


def _run_by(unit: Unit, containers: Mapping[str, Found]) -> Found | None:
    """Return the container that a unit runs, or None."""
    if unit.run is None:
        return None
    try:
        container, name = read_run(unit.run)
    except NotReadable:
        return None
    if name is not None:
        return containers.get(name)
    same = [
        one
        for one in containers.values()
        if one.container and one.container.image == container.image
    ]
    return same[0] if len(same) == 1 else None
