"""The locked packages of each release as what a GPU can be given, in the form the rules ask."""

from __future__ import annotations

from functools import cache

from plans.images import Offer, known_images
from plans.rules import version_of
from plans.wheel.data import PackageCode, host_needs
from releases.wheels import wheel_lock
from releases.wheels.data import data, policy
from releases.wheels.records import ARCHITECTURES


@cache
def offered(release: str, architecture: str) -> Offer | None:
    """Return the packages of a release for a CPU architecture, or None where nothing is locked."""
    there = policy(release)
    if architecture not in ARCHITECTURES or there is None:
        return None
    lock = wheel_lock(release, architecture)
    if lock is None or lock.cuda is None:
        return None
    return packages_of(lock.release, lock.cuda, architecture)


def packages_of(release: str, cuda: str | None, architecture: str) -> Offer:
    """Return what packages of a release, built for a CUDA release, have code for.

    Packages for the CPU have none (None); they are for trials and are asked as the others are,
    as an image is for a service on the CPU device.
    """
    cuda = cuda or "13.0"
    return Offer(
        release=release,
        tag=f"the packages of SGLang {release}",
        family=f"cuda{cuda.partition('.')[0]}",
        cuda=cuda,
        capabilities={architecture: _capabilities(release, architecture)},
        runtime="wheel",
    )


def known_wheels(architecture: str) -> tuple[Offer, ...]:
    """Return what is locked for a CPU architecture, the newest release first."""
    found = (offered(one.release, architecture) for one in data().releases)
    return tuple(
        sorted(
            (one for one in found if one is not None),
            key=lambda one: version_of(one.release) or (),
            reverse=True,
        )
    )


def _capabilities(release: str, architecture: str) -> frozenset[str]:
    # sglang-kernel's list was decoded from the wheel that the CUDA 13 image of the release has too.
    of_kernels: set[str] = set()
    for image in known_images():
        if image.release == release and image.family == "cuda13":
            of_kernels |= image.capabilities.get(architecture, frozenset())
    return frozenset(
        one
        for one in of_kernels
        if all(_has_code(part, one, architecture) for part in host_needs().code)
    )


def _has_code(part: PackageCode, capability: str, architecture: str) -> bool:
    wanted = version_of(capability)
    if wanted is None:
        return False
    if part.at_least is not None:
        return wanted >= (version_of(part.at_least) or ())
    made_for = [version_of(one) or () for one in part.capabilities.get(architecture, ())]
    return any(one[:1] == wanted[:1] and one <= wanted for one in made_for)
