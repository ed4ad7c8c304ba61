"""Reading manifests: bytes in, typed records out, nothing believed that was not checked.

Formats: OCI image index and manifest (v1), Docker manifest list and manifest (schema 2).
"""

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from locks.records import PLATFORM_OF, Bytes, Digest, MediaType, Platform, PlatformImage

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEXES = (OCI_INDEX, DOCKER_LIST)
SINGLES = (OCI_MANIFEST, DOCKER_MANIFEST)
ACCEPT = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))

_NAME = re.compile(r"[a-z0-9_.-]{1,30}")


class NotAManifest(ValueError):
    """The bytes are no manifest of the four known kinds; says what they are instead."""


class Descriptor(BaseModel):
    """A pointer in a manifest: media type, digest, size in bytes."""

    model_config = ConfigDict(frozen=True)

    mediaType: MediaType
    digest: Digest
    size: Bytes


class _PlatformName(BaseModel):
    os: str
    architecture: str
    variant: str | None = None


class _Child(Descriptor):
    platform: _PlatformName | None = None


class _Index(BaseModel):
    manifests: list[_Child] = Field(max_length=1000)


class _Single(BaseModel):
    config: Descriptor
    layers: list[Descriptor] = Field(max_length=1000)


def digest_of(body: bytes) -> str:
    """Return the digest of some bytes as registries write it."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def media_type_of(body: bytes, content_type: str | None) -> str:
    """Return which of the four kinds a body is. Raises NotAManifest.

    The body's own `mediaType` decides, then the header, then what fields it has (OCI allows a
    body without one). A header that contradicts the body is an error: the body is what was signed.
    """
    data = _object(body)
    header = (content_type or "").partition(";")[0].strip().lower()
    if data.get("schemaVersion") == 1:
        raise NotAManifest("a manifest of schema 1, which registries gave up: push the image anew")
    said = data.get("mediaType")
    if said is None:
        said = header if header in INDEXES + SINGLES else None
    if said is None:
        said = OCI_INDEX if "manifests" in data else OCI_MANIFEST if "config" in data else None
    if said not in INDEXES + SINGLES:
        raise NotAManifest("JSON that is neither an index nor a manifest of an image")
    if header in INDEXES + SINGLES and header != said:
        raise NotAManifest("a manifest whose own media type is not the one in the header")
    return str(said)


def children(body: bytes) -> tuple[dict[Platform, Descriptor], tuple[str, ...]]:
    """Return an index's manifests for the platforms we serve, and the names of all it lists.

    Attestations (platform unknown) are not listed. Where several fit, the plain one or `v8` wins.
    Raises NotAManifest.
    """
    try:
        index = _Index.model_validate(_object(body))
    except ValidationError:
        raise NotAManifest("an index whose entries cannot be read") from None
    found: dict[Platform, Descriptor] = {}
    names: list[str] = []
    for child in index.manifests:
        if child.platform is None:
            continue
        name = _named(child.platform)
        if name is None:
            continue
        if name not in names:
            names.append(name)
        platform = _served(child.platform)
        if platform is not None and child.mediaType in SINGLES and platform not in found:
            found[platform] = child
    return found, tuple(names)


def single(body: bytes, media_type: str) -> PlatformImage:
    """Return what a manifest of one image says. Raises NotAManifest."""
    try:
        manifest = _Single.model_validate(_object(body))
    except ValidationError:
        raise NotAManifest("a manifest whose config or layers cannot be read") from None
    total = manifest.config.size + sum(layer.size for layer in manifest.layers)
    try:
        return PlatformImage(
            manifest_digest=digest_of(body),
            manifest_media_type=media_type,
            config_digest=manifest.config.digest,
            config_media_type=manifest.config.mediaType,
            compressed_bytes=total,
        )
    except ValidationError:
        raise NotAManifest("a manifest with sizes that no image has") from None


def platform_of_config(body: bytes) -> tuple[Platform | None, str]:
    """Return which platform an image's config names, and its name. Raises NotAManifest."""
    try:
        platform = _PlatformName.model_validate(_object(body))
    except ValidationError:
        raise NotAManifest("a config that does not say its platform") from None
    return _served(platform), _named(platform) or "an unknown platform"


def _served(platform: _PlatformName) -> Platform | None:
    wanted = f"{platform.os}/{platform.architecture}"
    if platform.variant not in (None, "", "v8"):
        return None
    return next((one for one in PLATFORM_OF.values() if one == wanted), None)


def _named(platform: _PlatformName) -> str | None:
    parts = [platform.os, platform.architecture, *([platform.variant] if platform.variant else [])]
    if "unknown" in parts or not all(_NAME.fullmatch(part) for part in parts):
        return None
    return "/".join(parts)


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise NotAManifest("something that is not JSON") from None
    if not isinstance(data, dict):
        raise NotAManifest("JSON that is not an object")
    return data
