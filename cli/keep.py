"""Writes what a command keeps on the controller: whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class NotWritten(OSError):
    """A file of this machine could not be written; the text names it, and why."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} could not be written: {error.strerror}. Is there room, and may you write "
            f"there? df -h {path.parent}; ls -ld {path.parent}"
        )


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner reads, beside its place, then renamed. Raises NotWritten."""
    write_whole(path, content, 0o600)


def write_whole(path: Path, content: str, mode: int) -> None:
    """Write a file of that mode beside its place, then renamed: whoever reads it sees all of it.

    Raises NotWritten; nothing of it is left then.
    """
    new = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.fchmod(descriptor, mode)  # also where one was left there by a run that was cut
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise NotWritten(path, error) from None
