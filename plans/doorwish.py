"""What the operator wants of the door before a node's servers: a part of the wishes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from plans.names import read_address
from plans.numbers import a_number
from plans.ownlock import OwnLockField
from plans.sources import Source, read_source

MOST_KEYS = 100

PATH = re.compile(r"(/[A-Za-z0-9._@+-]+){2,}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)

URL = re.compile(r"http://(?P<at>(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5})/?", re.ASCII)
"""A server of another node: sglang-router speaks HTTP to it."""


def read_keys(value: Any) -> Any:
    """Return the sources of the door's keys: one, or a list. Raises ValueError without a value."""
    if value is None:
        return ()
    given = value if isinstance(value, list | tuple) else [value]
    if len(given) > MOST_KEYS:
        raise ValueError(f"has {len(given)} keys: {MOST_KEYS} at most")
    found = []
    for number, one in enumerate(given):
        at = f"[{number}] " if given is value else ""
        try:
            source = read_source(one)
        except ValueError as problem:
            raise ValueError(f"{at}{problem}") from None
        if source is None:
            raise ValueError(f"{at}is None: write where a key is, such as {{'env': 'DOOR_KEY'}}")
        found.append(source)
    return tuple(found)


class Tls(BaseModel):
    """The door's certificate and its key: files of the node, which what renews them writes there.

    ``certificate``: with those that signed it, as certbot's fullchain.pem. ``name``: the one by
    which clients know the door; the certificate must be for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: str
    key: str
    name: str | None = None

    @field_validator("certificate", "key", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("is no text: write the path of a file on the node")
        if "PRIVATE KEY" in value or "CERTIFICATE" in value:
            raise ValueError("holds the thing itself: write the path of a file on the node")
        if not PATH.fullmatch(value) or ".." in value.split("/"):
            raise ValueError(
                "is no path of a file on the node, such as /etc/ssl/door/fullchain.pem"
            )
        return value

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not NAME.fullmatch(value):
            raise ValueError(f"is {value!r}: write a name, such as llm.example.org")
        return value


class Door(BaseModel):
    """One ``sglang-router`` before servers, with the public address and the keys.

    ``servers``: names of this node's services, or addresses of other nodes' (http://HOST:PORT);
    none: all services of this node. ``wait``: seconds that a request waits for a server.
    ``pd_disaggregation``: they are halves of prefill/decode pairs, and each request goes to two.
    ``tls``: its certificate; without one it speaks HTTP. ``lock``: the operator's own lock of its packages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(a_number), Field(ge=1024, le=65535)]
    keys: Annotated[tuple[Source, ...], BeforeValidator(read_keys)] = ()
    wait: Annotated[float, BeforeValidator(a_number), Field(ge=0, le=3600)] = 60.0
    servers: tuple[str, ...] = ()
    tls: Tls | None = None
    pd_disaggregation: bool = False
    policy: Literal["cache_aware", "round_robin", "power_of_two", "random"] = "cache_aware"
    lock: OwnLockField = None

    @field_validator("host")
    @classmethod
    def _host(cls, value: str) -> str:
        return read_address(value, "0.0.0.0 for all of this node's")

    @field_validator("servers", mode="before")
    @classmethod
    def _servers(cls, value: Any) -> Any:
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            raise ValueError("is no list of names and addresses: write ['chat']")
        for one in given:
            if "@" in one:
                raise ValueError("holds an @: write an address without user or key")
            if "/" in one and not URL.fullmatch(one):
                raise ValueError(f"holds {one!r}: write a name, or http://HOST:PORT")
        if len(set(given)) != len(given):
            raise ValueError("names a server twice")
        return tuple(one.rstrip("/") for one in given)

    @property
    def is_open(self) -> bool:
        """Whether it can be reached from elsewhere without a key."""
        return not (self.keys or ipaddress.ip_address(self.host).is_loopback)


def door_tls(door: Door | None) -> tuple[str, str] | None:
    """Return the files of the node that are the door's certificate and its key, where it has any."""
    return (door.tls.certificate, door.tls.key) if door is not None and door.tls else None


class _Service(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...


def check_door(door: Door | None, services: Iterable[_Service]) -> None:
    """Say what of a door does not fit the node's services. Raises ValueError."""
    if door is None:
        return
    names = [one.name for one in services]
    for one in services:
        if one.port == door.port:
            raise ValueError(
                f"door.port: {one.name} has port {door.port} too: give the door the port that "
                f"clients know, and {one.name} another one"
            )
    for name in door.servers:
        if "/" not in name and name not in names:
            raise ValueError(
                f"door.servers: names {name!r}, and the services here are {', '.join(names)}: write "
                "one of them, or the address of another node's: http://HOST:PORT"
            )


def server_names(door: Door, services: Iterable[_Service]) -> Mapping[str, str | None]:
    """Return the door's servers by name; an address where one is of another node."""
    named = door.servers or tuple(one.name for one in services)
    found: dict[str, str | None] = {}
    for one in named:
        match = URL.fullmatch(one)
        found[match["at"] if match else one] = one if match else None
    return found
