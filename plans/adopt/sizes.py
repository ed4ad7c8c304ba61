"""Sizes as Docker and compose files write them."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size_bytes(value: Any) -> int | None:
    """Return bytes of ``16g``, ``16gb``, ``16GiB`` or a number; None where it is no size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([bkmgt]?)i?b?", str(value).strip().lower())
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def as_docker(size: int) -> str:
    """Return bytes as ``docker run --shm-size`` takes them: ``16g`` where it is even."""
    for unit, factor in (("g", 2**30), ("m", 2**20), ("k", 2**10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
