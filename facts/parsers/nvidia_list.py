"""``nvidia-smi -L``: the only form that names MIG devices by their UUIDs."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GPU = re.compile(r"GPU (\d{1,4}): ", re.ASCII)
_MIG = re.compile(r"\s+MIG \S+\s+Device\s+(\d{1,4}): \(UUID: (MIG-[^\s)]+)\)", re.ASCII)


def parse_list(lines: Iterable[str]) -> dict[int, dict[int, str]]:
    """Return the UUIDs of MIG devices: of each GPU's index, by the device's index in it."""
    found: dict[int, dict[int, str]] = {}
    devices: dict[int, str] = {}
    for line in lines:
        if gpu := _GPU.match(line):
            devices = found.setdefault(int(gpu[1]), {})
        elif mig := _MIG.match(line):
            devices[int(mig[1])] = mig[2]
    return found
