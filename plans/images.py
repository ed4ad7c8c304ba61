"""What a release can be had as, in the form that the rules ask it: here, as images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from plans.hostdata import Runtime
from releases.table import RELEASES
from releases.versions import parse_version


@dataclass(frozen=True)
class Offer:
    """One image of one release, or its locked packages, and what it has code for."""

    release: str
    tag: str  # "lmsysorg/sglang:v0.5.22"; of packages how texts name them
    family: str  # "cuda13", "cu129"
    cuda: str  # "13.0"
    capabilities: Mapping[str, frozenset[str]]  # by architecture of the CPU
    require_branches: frozenset[int] = frozenset()  # exceptions in NVIDIA_REQUIRE_CUDA
    compat_branches: frozenset[int] = frozenset()  # that the image's compatibility libcuda takes
    runtime: Runtime = "image"

    def has_code(self, capability: object, architecture: object) -> bool:
        """Say whether it has code for a GPU's capability on a CPU's architecture."""
        return isinstance(architecture, str) and capability in self.capabilities.get(
            architecture, frozenset()
        )


@cache
def known_images() -> tuple[Offer, ...]:
    """Return every image of the release table: the newest release first, newest CUDA first."""
    found = [
        Offer(
            release=release.version,
            tag=image.tag,
            family=image.cuda_family,
            cuda=image.cuda,
            capabilities={
                architecture: frozenset(code.capabilities)
                for architecture, code in image.architectures.items()
            },
            require_branches=frozenset(image.require.exception_branches),
            compat_branches=frozenset(image.compat.branches),
        )
        for release in RELEASES.values()
        for image in release.images
    ]
    return tuple(
        sorted(
            found,
            key=lambda one: (parse_version(one.release), parse_version(one.cuda)),
            reverse=True,
        )
    )


def known_releases() -> tuple[str, ...]:
    """Return the releases of the table, newest first."""
    return tuple(dict.fromkeys(image.release for image in known_images()))
