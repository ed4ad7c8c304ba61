"""What the operator wants: the data of an inventory, validated as a whole.

In an inventory it stands under the key ``sglang`` of a host or group. Every
message names the key and says what to write instead; all are given at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from locks.references import is_hub_name
from plans import paths
from plans.doorwish import Door, check_door
from plans.hooks import Hooks
from plans.hub import Hub
from plans.messages import sentences
from plans.mirrors import Mirrors
from plans.names import AbsolutePath, Revision, absolute, read_address, without_user
from plans.numbers import a_number
from plans.ownlock import OwnLock, OwnLockField
from plans.rankwish import check_nodes, ranks_on
from plans.sources import Keyed, Secrets, put_aside

DEFAULT_OUTPUT_CAP = 16384
"""Tokens that a default cap lets one answer have; offered, never taken silently."""

DEFAULT_TOKENS_PER_SECOND = 20.0
"""Tokens per second that the slowest request is assumed to get where nothing is said.

Low on purpose: a deadline that is too long costs nothing while a stop drains.
"""

SERVICE_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
"""Names of services: valid as a file, a container, a unit instance and a slice.

A slice's name may not hold two dashes in a row (systemd.slice(5)).
"""

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class WishesError(Exception):
    """The operator's data cannot be used; ``messages`` has every reason."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


Count = Annotated[int, BeforeValidator(a_number), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(a_number), Field(gt=0, le=7 * 24 * 3600)]


class Paths(_Model):
    """Where the big things go on the node."""

    weights: AbsolutePath = paths.WEIGHTS
    caches: AbsolutePath = paths.CACHES


class Limits(_Model):
    """Resource limits of the container (``docker run --ulimit``); -1 is unlimited.

    SGLang's own compose.yaml has these for memlock (pinned memory, RDMA) and
    stack; SGLang raises its soft limit of open files as far as the hard one lets
    it. A host that may not raise them itself, such as a system container, needs
    lower ones.
    """

    memlock: Annotated[int, BeforeValidator(a_number), Field(ge=-1)] = -1  # bytes
    stack: Annotated[int, BeforeValidator(a_number), Field(ge=-1)] = 67108864  # bytes
    nofile: Annotated[int, BeforeValidator(a_number), Field(ge=-1)] = 1048576  # open files


class Registry(_Model):
    """How image registries are asked: by the controller for the lock, by a node for the image.

    ``mirrors``: registry (``docker.io``) to the address of a mirror. ``insecure``: registries that
    the controller may ask without TLS; a node's Docker has its own list.
    """

    mirrors: dict[str, str] = {}
    insecure: tuple[str, ...] = ()

    @field_validator("mirrors", mode="before")
    @classmethod
    def _no_password(cls, value: Any) -> Any:
        # It would stand in kept plans; said here without it.
        if isinstance(value, Mapping) and any("@" in str(url) for url in value.values()):
            raise ValueError("holds a user or password: leave it out, and log in with docker login")
        return value


class Service(Keyed, _Model):
    """One ``sglang serve`` under systemd."""

    name: str
    model: str
    revision: Revision | None = None
    served_name: str | None = None
    kind: Literal["generate", "embed", "rerank"] = "generate"
    port: Annotated[int, BeforeValidator(a_number), Field(ge=1024, le=65535)] = 30000
    address: str = "127.0.0.1"
    tp_size: Count = 1
    gpus: Literal["all"] | tuple[int | str, ...] = "all"
    arguments: dict[str, Any] = {}
    environment: dict[str, str] = {}
    # Far above any model's context, far below what makes no deadline any more.
    output_cap: Annotated[Count, Field(le=100_000_000)] | None = None
    tokens_per_second: Annotated[float, BeforeValidator(a_number), Field(ge=0.01, le=1e6)] = (
        DEFAULT_TOKENS_PER_SECOND
    )
    queue_wait: Annotated[float, BeforeValidator(a_number), Field(ge=0, le=7 * 24 * 3600)] = 60.0
    silence_limit: Seconds = 900.0
    start_limit: Seconds = 3600.0
    release: str | None = None
    image: str | None = None
    wheel_lock: OwnLockField = None
    runtime: Literal["auto", "image", "wheel"] | None = None
    shm_size: Annotated[str, Field(pattern=r"^[1-9][0-9]*[bkmg]?$")] = "32g"
    ulimits: Limits = Limits()
    network: Literal["bridge", "host"] = "bridge"
    read_only: bool = True
    nodes: tuple[str, ...] = ()  # of a service over several, with rank 0's first
    rank: Annotated[int, BeforeValidator(a_number), Field(ge=0)] | None = None  # on this node

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if len(value) > 40 or not SERVICE_NAME.fullmatch(value):
            raise ValueError(
                f"is {value!r}: write lower case letters and digits, joined by single - or _, "
                "40 at most (what clients see is served_name, which is free)"
            )
        return value

    @field_validator("model")
    @classmethod
    def _model_is_hub_id_or_path(cls, value: str) -> str:
        if value.startswith("/"):
            return absolute(value)
        if "@" in value:
            raise ValueError(
                "holds an @: write a model of the hub (Qwen/Qwen3-8B), without user or key"
            )
        if value.startswith((".", "~")) or not is_hub_name(value):
            raise ValueError(
                f"is {value!r}: write a model of the hub (Qwen/Qwen3-8B) or an absolute path on the node"
            )
        return value

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        return read_address(value, "127.0.0.1 for this node alone")

    @field_validator("image")
    @classmethod
    def _image(cls, value: str | None) -> str | None:
        return without_user(value)

    @field_validator("served_name")
    @classmethod
    def _served_name(cls, value: str | None) -> str | None:
        # SGLang reads a colon in the served name as the start of a LoRA adapter's name.
        if value is not None and (not value.strip() or not value.isprintable() or ":" in value):
            raise ValueError("is empty or holds a colon or a control character: write a plain name")
        return value

    @field_validator("gpus", mode="before")
    @classmethod
    def _gpus(cls, value: Any) -> Any:
        if value == "all":
            return value
        if isinstance(value, (str, int)) or not isinstance(value, (list, tuple)):
            raise ValueError(
                f"is {value!r}: write 'all' or a list such as [0, 1] or ['GPU-…', 'MIG-…']"
            )
        if not value:
            raise ValueError("is an empty list: write 'all' or name the GPUs")
        for one in value:
            if isinstance(one, bool) or not (
                (isinstance(one, int) and one >= 0)
                or (isinstance(one, str) and re.fullmatch(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", one))
            ):
                raise ValueError(f"holds {one!r}: write indexes (0) or UUIDs ('GPU-…', 'MIG-…')")
        if len(set(value)) != len(value):
            raise ValueError("names a GPU twice")
        return tuple(value)

    @field_validator("environment", mode="before")
    @classmethod
    def _environment(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("is not a mapping: write {'NAME': 'value'}")
        for name, text in value.items():
            if not isinstance(name, str) or not ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(f"names {name!r}: write letters, digits and _")
            if not isinstance(text, str):
                raise ValueError(f"{name} is {text!r}: write it as text, '{_as_text(text)}'")
            # docker's --env-file has one line per variable and no quoting.
            if not all(c.isprintable() or c == "\t" for c in text):
                raise ValueError(f"{name} holds a line break or control character")
        return dict(value)

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("is not a mapping: write {'mem-fraction-static': 0.85}")
        for name, given in value.items():
            if not isinstance(name, str):
                raise ValueError(f"names {name!r}: write a flag's name as text")
            try:
                # Encoded too: half of a surrogate pair is no text that a file can hold.
                json.dumps({name: given}, allow_nan=False, ensure_ascii=False).encode()
            except RecursionError:
                raise ValueError(f"{name} is nested too deeply") from None
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name} is {given!r}: write text, a number, a list or a mapping"
                ) from None
        return dict(value)

    @model_validator(mode="after")
    def _nodes_fit(self) -> Service:
        check_nodes(self)
        return self

    @property
    def follows(self) -> bool:
        """Whether it is a rank that answers nobody: rank 0 does, on another node."""
        return bool(self.rank)

    @property
    def is_local(self) -> bool:
        """Whether the model is a path on the node."""
        return self.model.startswith("/")

    @property
    def public_name(self) -> str:
        """The model name that clients ask for."""
        return self.served_name or self.model


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


class Collect(_Model):
    """What ``collect`` leaves on a node, beside what its services need.

    ``keep``: the newest deployments of each service, whatever their age. Of the rest goes what was
    of no use for ``older_than_days``.
    """

    keep: Count = 3
    older_than_days: Annotated[float, BeforeValidator(a_number), Field(ge=0)] = 30


class Wishes(_Model):
    """Everything the operator wants of one node."""

    services: tuple[Service, ...]
    release: str | None = None
    image: str | None = None
    wheel_lock: OwnLockField = None
    jit_cache: Literal["auto", "required"] = "auto"
    runtime: Literal["auto", "image", "wheel"] = "auto"
    paths: Paths = Paths()
    registry: Registry = Registry()
    hub: Hub = Hub()
    mirrors: Mirrors = Mirrors()
    door: Door | None = None
    secrets: Secrets = Secrets()
    collect: Collect = Collect()
    forward_compat: bool = False
    cu129_override: bool = False
    unsupported: bool = False
    allow_daemon_reload: bool = False
    # Key of a host whose value says its group: no two nodes of one are in one batch.
    spread: Annotated[str, Field(min_length=1)] | None = None
    # How many nodes may start at once whose models lie on one network file system.
    shared_starts: Count | None = None
    hooks: Hooks = Hooks()

    @field_validator("image")
    @classmethod
    def _image(cls, value: str | None) -> str | None:
        return without_user(value)

    @model_validator(mode="after")
    def _services_apart(self) -> Wishes:
        if not self.services:
            raise ValueError("services: is empty: name one service at least")
        names = [service.name for service in self.services]
        for name in sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"services: two are named {name!r}: give each a name of its own")
        seen: dict[int, Service] = {}
        for service in self.services:
            other = seen.setdefault(service.port, service)
            if other is not service:
                raise ValueError(
                    f"services: {other.name} and {service.name} both have port {service.port}: "
                    f"give one another port, such as {_free_port(self.services)}"
                )
        check_door(self.door, self.services)
        return self

    def release_of(self, service: Service) -> str | None:
        """Return the release that was named for a service, or None."""
        return service.release or self.release

    def image_of(self, service: Service) -> str | None:
        """Return the image that was named for a service, or None."""
        return service.image or self.image

    def wheel_lock_of(self, service: Service) -> OwnLock | None:
        """Return the operator's own lock of packages that was named for a service, or None."""
        return service.wheel_lock or self.wheel_lock

    def runtime_of(self, service: Service) -> Literal["auto", "image", "wheel"]:
        """Return the runtime that was asked for a service."""
        return service.runtime or self.runtime


def _free_port(services: tuple[Service, ...]) -> int:
    taken = {service.port for service in services}
    return next(port for port in range(30000, 65536) if port not in taken)


def read_wishes(data: object, node: str) -> Wishes:
    """Validate an inventory's data for one node.

    Takes the value under the key ``sglang`` and the node's name. Returns the
    wishes. Raises WishesError with every message at once; each begins with the
    node's name and the key.
    """
    if not isinstance(data, Mapping):
        raise WishesError(
            [
                f"{node}: sglang: is {type(data).__name__}: write a mapping with 'services', "
                "as inventories/example.py shows"
            ]
        )
    try:
        return _validated(data, node)
    except RecursionError:
        raise WishesError([f"{node}: sglang: is nested too deeply"]) from None


def _validated(data: Mapping[Any, Any], node: str) -> Wishes:
    kept, messages = put_aside(data)  # what pydantic never sees it cannot print
    try:
        # Through JSON types: an inventory is Python, and lists and tuples are the same to us.
        wishes = Wishes.model_validate(kept)
    except ValidationError as error:
        messages += sentences(error, data, Wishes)
    else:
        ranks, said = ranks_on(wishes.services, node, door=wishes.door is not None)
        messages += said
        services = zip(wishes.services, ranks, strict=True)
        update = {"services": tuple(one.model_copy(update={"rank": r}) for one, r in services)}
        wishes = wishes.model_copy(update=update) if any(r is not None for r in ranks) else wishes
    if messages:
        raise WishesError([f"{node}: {line}" for line in messages])
    return wishes
