"""Fixtures of the node tier, and its one way of being skipped: loudly, naming what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.skipping import skip

from .harness.lab import Lab
from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry

# Program on this machine: Debian package that has it.
NEEDED = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "docker-registry": "docker-registry",
    "ip": "iproute2",
    "gcc": "gcc",
    "ssh": "openssh-client",
}


def missing() -> list[str]:
    """What keeps this machine from booting nodes, in words; empty where nothing does."""
    reasons = [] if os.geteuid() == 0 else ["not root"]
    reasons += [
        f"no {program} (package {package})"
        for program, package in NEEDED.items()
        if not shutil.which(program)
    ]
    return reasons


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The whole harness; skips, or fails under `SGLANG_TESTS_NO_SKIP=1`, where it cannot work."""
    reasons = missing()
    if reasons:
        text = f"node tier: {', '.join(reasons)}; `.ci/prepare` as root installs what is missing"
        skip(text)
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def node_cache(lab: Lab) -> Path:
    """The directory of what is made once."""
    return lab.cache


@pytest.fixture(scope="session")
def bridge(lab: Lab) -> str:
    """This machine's address on the nodes' bridge."""
    return lab.stage.address


@pytest.fixture(scope="session")
def registry(lab: Lab) -> Registry:
    """The running registry."""
    return lab.registry


@pytest.fixture(scope="session")
def mirror(lab: Lab) -> Mirror:
    """The running mirror of packages, Pythons and the distribution's own."""
    return lab.mirror


@pytest.fixture(scope="session")
def node_factory(lab: Lab) -> Callable[..., Node]:
    """`lab.node`: makes nodes that live until the run's end, or until their `discard()`."""
    return lab.node
