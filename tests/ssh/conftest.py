"""Fixtures of what is tried against real sshd and sudo on this machine, without a node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.skipping import skip

from .machine import Machine, Person, missing


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Users, sshd and sudo; skips, or fails under `SGLANG_TESTS_NO_SKIP=1`, where there are none."""
    reasons = missing()
    if reasons:
        text = f"ssh tier: {', '.join(reasons)}; `.ci/prepare` as root installs what is missing"
        skip(text)
    # Not below pytest's own folder, which is its user's alone: these come to their homes.
    with tempfile.TemporaryDirectory(prefix="sglang-ssh-") as folder:
        made = Machine.start(Path(folder))
        yield made
        made.close()


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """An operator with an empty ~/.ssh."""
    return Person(tmp_path / "home")
