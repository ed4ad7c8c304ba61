"""The build: the key of the kernel caches. What compiled them, and what for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Build:
    """Everything that compiled kernels depend on.

    A cache that another build left is never read: its objects are loaded as
    code, and SGLang's caches are not all keyed by what made them.
    """

    runtime: str  # the image's digest, or the lock of an environment
    architecture: str  # "x86_64"
    capabilities: tuple[str, ...]  # of the GPUs, sorted, each once
    driver_major: str | None  # where kernels are compiled by the driver (PTX)
    tp_size: int
    model: str  # hub id and commit, or path
    quantization: str | None

    @property
    def key(self) -> str:
        """A short name for it: 16 hexadecimal digits of the SHA-256 of its parts."""
        return _key(self)


@lru_cache(maxsize=256)  # asked for many times of one node, and equal nodes have equal builds
def _key(build: Build) -> str:
    text = json.dumps(asdict(build), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
