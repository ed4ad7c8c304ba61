"""A client for the OCI distribution API: from an image reference to digests that can be pulled.

Only asks; never pulls a layer. Every body is checked against its digest before it is read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from locks.credentials import Credentials, Found, docker_config_path, find_credentials
from locks.endpoint import Address, Endpoint
from locks.failures import RegistryCode, RegistryError
from locks.manifests import (
    ACCEPT,
    INDEXES,
    Descriptor,
    NotAManifest,
    children,
    digest_of,
    media_type_of,
    platform_of_config,
    single,
)
from locks.records import (
    PLATFORM_OF,
    Architecture,
    LockedImage,
    Platform,
    PlatformImage,
)
from locks.references import Reference, is_host
from locks.transport import Answer, Limits, Transport

__all__ = ["Credentials", "RegistryClient", "RegistryCode", "RegistryError", "RegistryOptions"]

T = TypeVar("T")


@dataclass(frozen=True)
class RegistryOptions:
    """How registries are asked.

    `mirrors`: registry name (`docker.io`) to a mirror's base URL, asked first; a path in the URL
    goes before the repository (`https://harbor.example/hub`). `credentials`: by registry name or a
    mirror's host, before what docker's configuration says; `docker_config`: that file (None: where
    docker has it). `insecure`: hosts that may be asked without TLS beside loopback and private
    addresses. `limits`: seconds and retries.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, Credentials] = field(default_factory=dict)
    docker_config: Path | None = None
    insecure: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class _Body:
    data: bytes
    media_type: str
    host: str


class MirrorRefused(ValueError):
    """A mirror of the inventory that cannot be asked; the text says what to write."""


class RegistryClient:
    """Resolves image references. One object keeps its connections and tokens; not for threads."""

    def __init__(
        self,
        options: RegistryOptions | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Take options and where to say what is done. Raises MirrorRefused."""
        self._options = options or RegistryOptions()
        self._progress = progress
        self._transport = Transport(self._options.limits, self._options.insecure)
        self._mirrors = {
            name: _mirror(name, url, self._transport) for name, url in self._options.mirrors.items()
        }
        self._endpoints: dict[Address, Endpoint] = {}

    def digest(self, reference: Reference) -> str:
        """Return what a reference points to now, `sha256:...`.

        Asks with HEAD, which costs nothing of Docker Hub's allowance. Raises RegistryError.
        """
        if reference.digest is not None:
            return reference.digest

        def ask(endpoint: Endpoint) -> str:
            answer = _manifest(endpoint, "HEAD", reference, reference.points_to)
            said = answer.headers.get("Docker-Content-Digest", "")
            if _looks_like_digest(said):
                return said
            got = _manifest(endpoint, "GET", reference, reference.points_to)
            return digest_of(_checked(got, reference, endpoint, None).data)

        return self._from_first(reference, ask)

    def resolve(
        self, reference: Reference, *, now: str, architectures: Iterable[Architecture] = ()
    ) -> LockedImage:
        """Return digests, sizes and platforms of an image.

        `now` is the time to write down (ISO, with zone); `architectures` those that must be there.
        Raises RegistryError.
        """
        top = self._body(reference, reference.points_to, reference.digest)
        platforms, names = self._platforms(reference, top)
        locked = LockedImage(
            asked=reference.asked,
            registry=reference.registry,
            repository=reference.repository,
            tag=reference.tag,
            index_digest=digest_of(top.data),
            index_media_type=top.media_type,
            platforms=platforms,
            answered_by=top.host,
            resolved_at=now,
        )
        if not platforms:
            _architecture_missing(reference, "x86_64 or aarch64", names)
        for architecture in architectures:
            check_architecture(reference, locked, architecture)
        return locked

    def _platforms(
        self, reference: Reference, top: _Body
    ) -> tuple[dict[Platform, PlatformImage], tuple[str, ...]]:
        try:
            if top.media_type in INDEXES:
                wanted, names = children(top.data)
                found = {
                    platform: self._child(reference, child) for platform, child in wanted.items()
                }
                return found, names
            image = single(top.data, top.media_type)
            config = self._config(reference, image)
            platform, name = platform_of_config(config)
        except NotAManifest as error:
            raise _garbage(top.host, reference, str(error)) from None
        return ({platform: image} if platform is not None else {}), (name,)

    def _child(self, reference: Reference, child: Descriptor) -> PlatformImage:
        body = self._body(reference, child.digest, child.digest)
        if len(body.data) != child.size or body.media_type != child.mediaType:
            raise NotAManifest("a manifest that is not what the index says of it")
        return single(body.data, body.media_type)

    def _config(self, reference: Reference, image: PlatformImage) -> bytes:
        asked = f"the config of {reference.asked}"

        def ask(endpoint: Endpoint) -> bytes:
            answer = endpoint.ask(
                "GET",
                reference.repository,
                "blobs",
                image.config_digest,
                accept="*/*",
                asked=asked,
            )
            if digest_of(answer.body) != image.config_digest:
                _mismatch(endpoint.host, asked, image.config_digest, digest_of(answer.body))
            return answer.body

        return self._from_first(reference, ask)

    def _body(self, reference: Reference, name: str, digest: str | None) -> _Body:
        def ask(endpoint: Endpoint) -> _Body:
            answer = _manifest(endpoint, "GET", reference, name)
            return _checked(answer, reference, endpoint, digest)

        return self._from_first(reference, ask)

    def _from_first(self, reference: Reference, ask: Callable[[Endpoint], T]) -> T:
        """Ask the mirror where there is one, and the registry itself when that does not help."""
        mirror = self._mirrors.get(reference.registry)
        real = self._endpoint(Address(reference.host), reference.registry)
        if mirror is None:
            return ask(real)
        try:
            return ask(self._endpoint(mirror, mirror.host))
        except RegistryError as earlier:
            self._progress(f"The mirror does not help ({earlier.code}): {earlier}")
            try:
                return ask(real)
            except RegistryError as error:
                raise error.after(earlier) from None

    def _endpoint(self, address: Address, name: str) -> Endpoint:
        if address not in self._endpoints:
            given = self._options.credentials.get(name)
            config = self._options.docker_config or docker_config_path()
            found = Found(given) if given is not None else find_credentials(name, config)
            self._endpoints[address] = Endpoint(address, self._transport, found)
        return self._endpoints[address]


def check_architecture(
    reference: Reference, image: LockedImage, architecture: Architecture
) -> None:
    """Raise RegistryError (`ARCHITECTURE_MISSING`) when an image is not there for a machine."""
    if image.for_architecture(architecture) is None:
        _architecture_missing(reference, architecture, tuple(image.platforms))


def _manifest(endpoint: Endpoint, method: str, reference: Reference, name: str) -> Answer:
    asked = reference.asked
    if name != reference.points_to:
        asked = f"{name[:19]}... of {reference.asked}"
    return endpoint.ask(method, reference.repository, "manifests", name, accept=ACCEPT, asked=asked)


def _checked(answer: Answer, reference: Reference, endpoint: Endpoint, digest: str | None) -> _Body:
    """Check a body against the digest asked for and the one in its header, then its kind."""
    actual = digest_of(answer.body)
    said = answer.headers.get("Docker-Content-Digest")
    for expected in (digest, said):
        if expected is not None and expected != actual:
            if not _looks_like_digest(expected):
                raise _garbage(endpoint.host, reference, "a digest that is not sha256")
            _mismatch(endpoint.host, reference.asked, expected, actual)
    try:
        media_type = media_type_of(answer.body, answer.headers.get("Content-Type"))
    except NotAManifest as error:
        raise _garbage(endpoint.host, reference, str(error)) from None
    return _Body(answer.body, media_type, endpoint.host)


def _looks_like_digest(text: str) -> bool:
    name, _, digits = text.partition(":")
    return name == "sha256" and len(digits) == 64 and set(digits) <= set("0123456789abcdef")


def _mismatch(host: str, asked: str, expected: str, actual: str) -> NoReturn:
    raise RegistryError(
        "DIGEST_MISMATCH",
        host=host,
        asked=asked,
        came=f"bytes with the digest {actual} where {expected} was due",
        mend="Something between here and the registry (a cache, a mirror, a proxy) changes or "
        "cuts what it serves. Ask from another machine or without the mirror; do not use it.",
    )


def _garbage(host: str, reference: Reference, came: str) -> RegistryError:
    return RegistryError(
        "REGISTRY_GARBAGE",
        host=host,
        asked=reference.asked,
        came=f"there came {came}",
        mend="Is this a registry, and an image? A login page or proxy may stand before it.",
    )


def _architecture_missing(reference: Reference, wanted: str, names: tuple[str, ...]) -> NoReturn:
    platform = next((p for name, p in PLATFORM_OF.items() if name == wanted), None)
    there = ", ".join(names) or "nothing that names its platform"
    raise RegistryError(
        "ARCHITECTURE_MISSING",
        host=reference.host,
        asked=f"{reference.asked} for {wanted}" + (f" ({platform})" if platform else ""),
        came=f"it has {there} only",
        mend="Name a tag that has this architecture.",
        command=f"docker manifest inspect {reference.asked}",
    )


def _mirror(name: str, url: str, transport: Transport) -> Address:
    """Take a mirror's base URL apart. Raises MirrorRefused, which never shows a password in it."""
    wrong = f"The mirror of {name!a} is not usable: write https://HOST[:PORT][/PATH]"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise MirrorRefused(f"{wrong}.") from None
    if "@" in parts.netloc:
        raise MirrorRefused(f"{wrong} without a user or password; log in with docker login.")
    if parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise MirrorRefused(f"{wrong}.")
    if not is_host(parts.netloc):
        raise MirrorRefused(f"{wrong}.")
    if parts.scheme == "http" and not transport.plain_allowed(parts.netloc):
        raise MirrorRefused(f"{wrong}; without TLS only where the host is listed as insecure.")
    path = parts.path.strip("/")
    return Address(parts.netloc.lower(), parts.scheme, f"{path}/" if path else "")
