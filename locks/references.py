"""Image references: what `lmsysorg/sglang:v0.5.22` names, and which names are refused.

Also which names a hub may have for a model and its revision.

A tag that moves is refused by name: what it runs would depend on the day it was pulled.
The grammar is that of the OCI distribution specification and of Docker's own reference parser.
"""

import ipaddress
import re
from typing import Literal, NoReturn

from pydantic import BaseModel, ConfigDict

DOCKER_HUB = "docker.io"
DOCKER_HUB_HOST = "registry-1.docker.io"
_DOCKER_HUB_NAMES = (DOCKER_HUB, DOCKER_HUB_HOST, "index.docker.io")

_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{{1,5}}))?")
_MOVING = re.compile(r"latest|latest-.*|nightly.*|dev.*|main", re.IGNORECASE)
_REPO_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?:{_REPO_PART}/)?{_REPO_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)

_WRITE_INSTEAD = (
    "Write the tag of one release, such as {name}:v0.5.22, or pin the image by digest: "
    "{name}@sha256:..."
)


class ReferenceRefused(ValueError):
    """An image reference that is malformed (`BAD_REFERENCE`) or moves (`MOVING_TAG`)."""

    def __init__(self, code: Literal["BAD_REFERENCE", "MOVING_TAG"], message: str) -> None:
        super().__init__(message)
        self.code = code


class Reference(BaseModel):
    """One image reference, taken apart. At least one of `tag` and `digest` is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: str
    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def host(self) -> str:
        """The host (and port) to ask: for Docker Hub another one than its name."""
        return DOCKER_HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def points_to(self) -> str:
        """What to ask the registry for: the digest where there is one, else the tag."""
        return self.digest or self.tag or ""

    @property
    def canonical(self) -> str:
        """The same for every spelling of a reference. A digest makes the tag irrelevant."""
        mark = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{mark}"

    @property
    def runtime_variant(self) -> bool:
        """Whether this is the smaller `-runtime` image, which has no compilers.

        Such an image is allowed when asked for and is never to be chosen by a program itself.
        """
        return self.tag is not None and self.tag.endswith("-runtime")


def parse_reference(text: str) -> Reference:
    """Take an image reference apart.

    Takes `[registry[:port]/]repository[:tag][@sha256:...]`; without a registry it is Docker Hub's,
    where a name of one part lies under `library/`. Raises ReferenceRefused for anything malformed,
    for a reference without tag or digest, and for a tag that moves (`latest`, `latest-*`,
    `nightly*`, `dev*`, `main`) unless a digest stands beside it.
    """
    if "://" in text:
        _bad(text, "leave out the part up to ://")
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        _bad(text, "what follows @ must be sha256: and 64 hexadecimal digits in lower case")
    registry, path = _split_registry(name)
    repository, colon, tag = path.partition(":")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > 255:
        lower = ", with no capital letters" if repository != repository.lower() else ""
        _bad(text, f"a repository is written like lmsysorg/sglang{lower}")
    if colon and not tag:
        _bad(text, "the tag after the colon is missing")
    if tag and not _TAG.fullmatch(tag):
        _bad(text, "a tag has letters, digits, '_', '.' and '-' only, at most 128 of them")
    if not digest:
        _refuse_moving(text, f"{name.removesuffix(':' + tag)}", tag)
    if registry in _DOCKER_HUB_NAMES:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    return Reference(
        asked=text, registry=registry, repository=repository, tag=tag or None, digest=digest or None
    )


def is_hub_name(repo: str) -> bool:
    """Whether `repo` can be the name of a model on a hub: `OWNER/NAME`, or a name alone."""
    return bool(_REPO.fullmatch(repo)) and not (".." in repo or "--" in repo or len(repo) > 96)


def is_revision(text: str) -> bool:
    """Whether `text` can be a revision of a model on a hub: a branch, a tag, a commit."""
    return bool(_REVISION.fullmatch(text)) and ".." not in text


def is_nearby(host: str) -> bool:
    """Whether `host[:port]` is this machine or a private address (RFC 1918, fc00::/7).

    Only such hosts may be asked without TLS. A name other than `localhost` never counts: what it
    resolves to is somebody else's decision.
    """
    bare = strip_port(host)
    if bare == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    return address.is_loopback or any(
        address in network for network in _PRIVATE if network.version == address.version
    )


def is_loopback(host: str) -> bool:
    """Whether `host[:port]` is this very machine."""
    bare = strip_port(host)
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def strip_port(host: str) -> str:
    """Return `host[:port]` without its port and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_host(text: str) -> bool:
    """Whether `text` is a host name or address with an optional port in 1..65535."""
    match = _HOST.fullmatch(text)
    if match is None:
        return False
    if text.startswith("["):
        try:
            ipaddress.IPv6Address(strip_port(text))
        except ValueError:
            return False
    port = match["port"]
    return port is None or 1 <= int(port) <= 65535


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return DOCKER_HUB, name
    if not is_host(first):
        _bad(name, f"{first!a} is neither a host nor a host:port")
    return first.lower(), rest


def _refuse_moving(text: str, name: str, tag: str) -> None:
    instead = _WRITE_INSTEAD.format(name=name)
    if not tag:
        raise ReferenceRefused(
            "MOVING_TAG", f"{text!a} names no tag, which means latest, and latest moves. {instead}"
        )
    if _MOVING.fullmatch(tag):
        raise ReferenceRefused(
            "MOVING_TAG",
            f"The tag {tag!a} of {name} moves: it is another image tomorrow. {instead}",
        )


def _bad(text: str, why: str) -> NoReturn:
    shown = text if len(text) <= 200 else text[:200] + "..."
    raise ReferenceRefused("BAD_REFERENCE", f"{shown!a} is not an image reference: {why}.")
