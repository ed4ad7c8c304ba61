"""What was found on a node that serves SGLang by hand, and what an inventory makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["container", "unit", "process"]

Gpus = Literal["all"] | tuple[str, ...] | int | None
"""GPUs that a container is given: all, these, so many (the first), or none."""


class NotReadable(ValueError):
    """A text that says nothing of a server; the message says what was looked for."""


@dataclass(frozen=True)
class Note:
    """Something of the old server that has no place in the entry, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        """One sentence for people."""
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Mount:
    """A directory or file of the node that a container sees."""

    source: str  # of the node; the name of a volume where it is none of its paths
    target: str  # inside the container
    read_only: bool = False


@dataclass(frozen=True)
class Port:
    """A port of a container that the node publishes."""

    inside: int
    outside: int
    address: str = ""  # "": all addresses


@dataclass(frozen=True)
class Container:
    """How a container was started, whoever wrote it down: Docker, a command line, a compose file."""

    image: str
    words: tuple[str, ...]  # what it runs, entrypoint and command; () is what the image says
    environment: Mapping[str, str] = field(default_factory=dict)  # without the image's own
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    network: str = "bridge"
    shm_bytes: int | None = None  # None: Docker's own 64 MiB, or the node's with ipc=host
    ulimits: Mapping[str, int] = field(default_factory=dict)
    gpus: Gpus = None
    rdma: bool = False
    restart: str = "no"
    init: bool = False
    lost: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Command:
    """One call of SGLang's server, found in the words that start it."""

    words: tuple[str, ...]  # its arguments alone
    environment: Mapping[str, str] = field(default_factory=dict)  # set before it
    program: str = ""  # the program that runs it: "/opt/venv/bin/python3"
    by_shell: bool = False  # a shell is its parent and hands no signal on
    lost: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Found:
    """One server of SGLang, as it is run by hand."""

    kind: Kind
    name: str  # of the container or unit; of a process its number
    where: str  # in words: "container llm", "unit llm.service"
    command: Command
    environment: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None
    container_name: str | None = None  # as Docker lists it, where it runs
    version: str | None = None  # of the package sglang, where it was seen
    home: str | None = None  # of the user who runs it
    directory: str | None = None  # its working directory
    lost: tuple[Note, ...] = ()
    stop: tuple[str, ...] = ()  # commands that stop it, in order
    ends: str = ""  # what becomes of its requests in flight then


@dataclass(frozen=True)
class Entry:
    """What an inventory says of one service, and what of the old one it does not carry."""

    found: Found
    service: Mapping[str, Any]
    node: Mapping[str, Any] = field(default_factory=dict)  # keys beside "services"
    lost: tuple[Note, ...] = ()  # cannot be carried over
    differs: tuple[str, ...] = ()  # is carried over in another form
    secrets: tuple[str, ...] = ()  # where a secret stood, and where it belongs
