"""Files that the toolkit manages, and the space on the paths it writes to."""

from __future__ import annotations

import hashlib
import re

from facts import fields
from facts.records import ABSENT, ManagedFile, Space, Unknown
from facts.sections import Section, Sections

MASK = "*MASKED*"
"""What survey.sh puts in the place of values that look like secrets."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def parse_files(sections: Sections) -> dict[str, ManagedFile]:
    """Return the files of the survey, by path."""
    texts = {section.out[0]: section for section in sections.all("text") if section.out}
    files = {}
    for section in sections.all("file"):
        if section.out and section.out[0].startswith("/"):
            path = section.out[0]
            files[path] = _file(path, section, texts.get(path))
    return files


def _file(path: str, section: Section, text: Section | None) -> ManagedFile:
    links = [line.removeprefix("-> ") for line in section.out[2:3] if line.startswith("-> ")]
    lines = [line for line in section.out[1:] if line and not line.startswith("-> ")]
    if section.failure is not None:
        # It is there, or behind a directory that may not be searched: never "it is missing".
        unreadable = section.failure
        if not lines:
            return ManagedFile(path, True, unreadable, unreadable, unreadable, unreadable)
    elif not lines:
        return ManagedFile(path, exists=False)
    kind, mode, owner = (*lines[0].split("|"), "", "", "")[:3]
    checksum = fields.text("ManagedFile.sha256", lines[1] if len(lines) > 1 else None)
    if isinstance(checksum, Unknown) and section.failure is not None:
        checksum = section.failure
    elif isinstance(checksum, Unknown) and not kind.startswith("regular"):
        checksum = Unknown("unsupported", kind)
    octal = fields.text("ManagedFile.mode", mode)
    return ManagedFile(
        path=path,
        exists=True,
        sha256=checksum,
        mode=octal if isinstance(octal, Unknown) else octal.zfill(4),
        owner=fields.text("ManagedFile.owner", owner),
        text=_text(text, checksum),
        link=fields.text("ManagedFile.link", links[0] if links else None),
    )


def _text(section: Section | None, checksum: str | Unknown) -> str | Unknown:
    """Return a file's text, exact to its last line break; checked against its checksum.

    Control characters and bytes that are no UTF-8 do not travel, so such a text is not known.
    One with a masked value is as good as it may be.
    """
    if section is None:
        return ABSENT
    if section.failure is not None:
        return section.failure
    text = "\n".join(section.out[1:])
    whole = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == checksum
    return text if whole or MASK in text else Unknown("malformed", "not plain text, or changing")


def parse_spaces(sections: Sections) -> dict[str, Space]:
    """Return the paths whose space was asked for, by path, with those that Docker names."""
    lines = sections.lines("mounts", "mounts")
    mounts = [] if isinstance(lines, Unknown) else _mounts(lines)
    spaces = {}
    for section in sections.all("space"):
        rows = [line for line in section.out if line]
        if len(rows) >= 3 and all(row.startswith("/") for row in rows[:3]):
            spaces[rows[0]] = _space(section, rows, mounts)
    for part in sections.unfinished:
        # "space-3 space /var/lib/sglang/hub": a dead network mount, in most cases.
        words = part.split(" ", 2)
        if len(words) == 3 and words[1] == "space":
            late = Unknown("unreadable", "did not return in time")
            spaces[words[2]] = Space(words[2], True, words[2], late, late, late, late, late)
    return spaces


def _mounts(lines: tuple[str, ...]) -> list[list[str]]:
    rows = (line.split() for line in lines)
    return [[_plain(word) for word in row] for row in rows if len(row) >= 4]


def _plain(word: str) -> str:
    """Undo /proc/mounts' writing of a space as ``\\040``."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word)


def _space(section: Section, rows: list[str], mounts: list[list[str]]) -> Space:
    path, existing, real = rows[:3]
    # The last mount over a place is the one that shows.
    holding = [row for row in mounts if real == row[1] or real.startswith(row[1].rstrip("/") + "/")]
    mount = max(reversed(holding), key=lambda row: len(row[1]), default=None)
    failure = section.failure
    free: str | Unknown | None = failure
    if failure is None:
        cells = rows[-1].split()
        free = cells[3] if len(rows) > 4 and len(cells) >= 6 else Unknown("malformed", rows[-1])
    options = mount[3].split(",") if mount else []
    return Space(
        path=path,
        exists=path == existing,
        existing=existing,
        mount=fields.text("Space.mount", mount[1] if mount else None),
        file_system=fields.text("Space.file_system", mount[2] if mount else None),
        source=fields.text("Space.source", mount[0] if mount else None),
        free_bytes=fields.number("Space.free_bytes", free),
        read_only=fields.flag("Space.read_only", options[0] if options else None),
    )
