"""Locks of Python packages for the wheel runtime: one per release and CPU architecture.

A lock is a requirements file with the hash of each wheel (`releases/wheels/<release>-<arch>.txt`).
`python -m releases.tools.lock_wheels RELEASE` writes it from `releases/data/wheels.yaml`; nothing
in it is written by hand.
"""

from __future__ import annotations

from releases.wheels.checks import LockProblem, disagreements, problems
from releases.wheels.records import Departure, Package, Unresolved, WheelLock
from releases.wheels.table import lock_text, wheel_lock, why_not_locked
from releases.wheels.text import LockDamaged, read_lock, write_lock

__all__ = [
    "Departure",
    "LockDamaged",
    "LockProblem",
    "Package",
    "Unresolved",
    "WheelLock",
    "disagreements",
    "lock_text",
    "problems",
    "read_lock",
    "wheel_lock",
    "why_not_locked",
    "write_lock",
]
