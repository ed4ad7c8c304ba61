"""The locks that the toolkit carries, by release and CPU architecture."""

from __future__ import annotations

import functools
from pathlib import Path

from releases.wheels.checks import LockProblem
from releases.wheels.data import data, locked_releases
from releases.wheels.records import ARCHITECTURES, WheelLock
from releases.wheels.text import read_lock

FOLDER = Path(__file__).parent


def lock_name(release: str, architecture: str) -> str:
    """Return the name of a lock's file."""
    return f"{release.removeprefix('v')}-{architecture}.txt"


def lock_text(release: str, architecture: str, folder: Path = FOLDER) -> str | None:
    """Return a lock as text, as pip and uv take it, or None where there is none."""
    if architecture not in ARCHITECTURES or data().release(release.removeprefix("v")) is None:
        return None
    path = folder / lock_name(release, architecture)
    return path.read_text(encoding="utf-8") if path.is_file() else None


@functools.cache
def wheel_lock(release: str, architecture: str) -> WheelLock | None:
    """Return the lock of a release for a CPU architecture (as `uname -m` says), or None.

    Raises LockDamaged where the file was edited. `why_not_locked` says why there is none.
    """
    text = lock_text(release, architecture)
    return None if text is None else read_lock(text)


def why_not_locked(release: str, architecture: str, folder: Path = FOLDER) -> LockProblem | None:
    """Return why there is no lock for a release and an architecture; None where there is one."""
    if lock_text(release, architecture, folder) is not None:
        return None
    one = data().release(release.removeprefix("v"))
    if one is not None and one.refused is not None:
        return LockProblem(
            "WHEELS_NOT_LOCKED",
            f"SGLang {one.release} as Python packages: {one.refused.why}",
            "a release whose packages are locked: " + ", ".join(locked_releases()),
            f"use the image runtime with {one.refused.image}",
        )
    where = f"SGLang {release.removeprefix('v')} on {architecture}"
    return LockProblem(
        "WHEELS_NOT_LOCKED",
        f"no lock of Python packages for {where}",
        f"one of {', '.join(locked_releases())} on {' or '.join(ARCHITECTURES)}",
        "use the image runtime, or choose one of these releases",
    )
