"""The packages of the door: sglang-router and what it needs, locked with their hashes.

One version for a version of the toolkit, and one lock for each CPU architecture, written by
``python -m releases.tools.lock_door``. They are locks as those of SGLang's releases are, for the
CPU: nothing in them needs a GPU or a compiler.
"""

from __future__ import annotations

import functools
from pathlib import Path

from releases.wheels.checks import LockProblem, files_of
from releases.wheels.records import ARCHITECTURES, WheelLock
from releases.wheels.text import read_lock, write_lock

FOLDER = Path(__file__).parent

ROUTER = "sglang-router"
VERSION = "0.3.2"
"""The version that was tried: its endpoints, keys and error codes are what templates/door.py goes by."""

PYTHON = "3.12"
GLIBC = "2.34"
"""As SGLang's own locks: a node keeps one Python for both."""


def lock_name(architecture: str) -> str:
    """Return the name of a lock's file."""
    return f"{VERSION}-{architecture}.txt"


@functools.cache
def door_lock(architecture: str) -> WheelLock | None:
    """Return the lock for a CPU architecture (as `uname -m` says), or None.

    Raises LockDamaged where the file was edited.
    """
    path = FOLDER / lock_name(architecture)
    if architecture not in ARCHITECTURES or not path.is_file():
        return None
    return read_lock(path.read_text(encoding="utf-8"))


def door_text(lock: WheelLock) -> str:
    """Return a lock of the door as text; its first line is of the router, not of SGLang."""
    return write_lock(lock).replace("# SGLang ", f"# {ROUTER} ", 1)


def door_problems(lock: WheelLock) -> list[LockProblem]:
    """Return all that is wrong with a lock of the door; nothing where it can be installed."""
    again = "python -m releases.tools.lock_door"
    router = lock.package(ROUTER)
    wrong = files_of(lock, again)
    if router is None or router.version != VERSION or lock.release != VERSION:
        seen = "no sglang-router" if router is None else f"sglang-router {router.version}"
        wrong.append(LockProblem("WHEELS_WRONG_RELEASE", seen, f"sglang-router {VERSION}", again))
    return wrong
