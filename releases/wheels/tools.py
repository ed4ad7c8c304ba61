"""The programs that the controller brings to a node: uv, by version and hash."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("tools.txt")

PLATFORMS = {"x86_64": "manylinux2014_x86_64", "aarch64": "manylinux2014_aarch64"}
"""The platform tag of a wheel for each CPU architecture, as `uname -m` says it."""


@dataclass(frozen=True)
class Tool:
    """One package of one program."""

    name: str
    version: str
    hashes: frozenset[str]  # SHA-256 of each file of that version: 64 hexadecimal digits

    @property
    def file_name(self) -> str:
        """Its name on a node: another version is another file."""
        return f"{self.name}-{self.version}"


@cache
def uv() -> Tool:
    """Return the uv that the toolkit brings."""
    text = FILE.read_text(encoding="utf-8")
    found = re.search(r"^uv==(\S+) \\$", text, re.MULTILINE)
    hashes = frozenset(re.findall(r"^    --hash=sha256:([0-9a-f]{64})\b", text, re.MULTILINE))
    if found is None or not hashes:
        raise ValueError(f"{FILE} names no uv with hashes")
    return Tool("uv", found[1], hashes)
