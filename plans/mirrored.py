"""The name by which a node fetches and runs an image: its registry's own, or a mirror's.

A mirror of `registry.mirrors` serves the same bytes under a name of its own, and Docker keeps an
image under the name it was pulled by. So the image is pulled and run by the mirror's name and the
same digest, and nothing in the node's daemon.json is needed for it but, for a mirror without TLS,
`insecure-registries`. A daemon that has the mirror among its own `registry-mirrors` does that by
itself, for Docker Hub alone. What is in the store already is run by the name it has there.
"""

from __future__ import annotations

import ipaddress
import re

from facts.records import Docker
from locks.records import LockedImage, PlatformImage
from locks.references import DOCKER_HUB, is_loopback, strip_port
from plans import text
from plans.refusals import Caution
from plans.wishes import Registry

_ADDRESS = re.compile(r"https?://([^/?#@]+)((?:/[^/?#]+)*)/?")


def name_to_pull(image: LockedImage, registry: Registry, docker: Docker) -> str:
    """Return the name by which a node pulls an image: `mirror.example.org/lmsysorg/sglang@sha256:...`.

    A mirror on a loopback address is the controller's own, and no node is sent there.
    """
    own = text.short_reference(image)
    url = registry.mirrors.get(image.registry)
    if url is None:
        return own
    found = _ADDRESS.fullmatch(url)
    if found is None:  # the lock is refused with it
        return own
    if is_loopback(found[1]) or (image.registry == DOCKER_HUB and _has(docker, url)):
        return own
    base = f"{found[1]}{found[2]}".rstrip("/").lower()
    return f"{base}/{image.repository}@{image.index_digest}"


def names_there(image: LockedImage, platform: PlatformImage, docker: Docker) -> list[str]:
    """Return the names under which an image is in a node's store, its registry's own first."""
    own = text.short_reference(image)
    repository = own.partition("@")[0]
    digests = (image.index_digest, platform.manifest_digest)
    there = [one for one in docker.images if one.digest in digests]
    others = {f"{one.repository}@{one.digest}" for one in there if one.repository != repository}
    found = [own] if any(one.repository == repository for one in there) else []
    return found + sorted(others)


def mirror_caution(service: str, name: str, registry: Registry, docker: Docker) -> Caution | None:
    """Say what a mirror without TLS needs in the node's daemon.json, where that is not there."""
    host = name.partition("/")[0]
    plain = {
        url.lower().removeprefix("http://").partition("/")[0]
        for url in registry.mirrors.values()
        if url.startswith("http://")
    }
    if host not in plain or host in docker.insecure or _inside(host, docker.insecure):
        return None
    return Caution(
        "MIRROR_WITHOUT_TLS",
        f"the mirror {host} has no TLS, and Docker on this node takes none without it but those of "
        f'daemon.json: add {{"insecure-registries": ["{host}"]}} to /etc/docker/daemon.json, then '
        "systemctl reload docker",
        service,
    )


def _has(docker: Docker, url: str) -> bool:
    return url.rstrip("/") in {one.rstrip("/") for one in docker.mirrors}


def _inside(host: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ipaddress.ip_address(strip_port(host).strip("[]"))
    except ValueError:
        return False
    for one in networks:
        try:
            if address in ipaddress.ip_network(one, strict=False):
                return True
        except ValueError:
            continue
    return False
