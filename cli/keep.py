"""Writes what a command keeps on the controller: private, and whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner reads, beside its place, then renamed."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # also where one was left there by a run that was cut
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(new, path)
