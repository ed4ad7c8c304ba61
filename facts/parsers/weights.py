"""What is on a node of hub models: what was found good, what is there, what has come so far."""

from __future__ import annotations

import re

from facts.records import HubFiles
from facts.sections import Section, Sections

_MARKED = re.compile(
    r"marked ([0-9a-f]{40}) ([0-9]{1,18})\|([0-9]{1,18})\|([0-9a-f]{40,64})\|(.+)", re.ASCII
)
_THERE = re.compile(r"there ([0-9]{1,18})\|([0-9]{1,18})\|\./([0-9a-f]{40})/(.+)", re.ASCII)
_PART = re.compile(r"part ([0-9]{1,18})\|blobs/([0-9a-f]{40,64})\.part", re.ASCII)


def parse_weights(sections: Sections) -> dict[str, HubFiles]:
    """Return the hub models that were asked for, by ``HF_HOME:NAME``.

    What could not be read is not there: it is then fetched or hashed, never taken for good.
    """
    return {
        section.out[0]: _model(section)
        for section in sections.all("weights")
        if section.out and section.out[0].startswith("/")
    }


def _model(section: Section) -> HubFiles:
    marked: dict[str, dict[str, tuple[int, int, str]]] = {}
    there: dict[str, dict[str, tuple[int, int]]] = {}
    parts: dict[str, int] = {}
    for line in section.out[1:]:
        if found := _MARKED.fullmatch(line):
            commit, size, changed, checksum, path = found.groups()
            marked.setdefault(commit, {})[path] = (int(size), int(changed), checksum)
        elif found := _THERE.fullmatch(line):
            size, changed, commit, path = found.groups()
            there.setdefault(commit, {})[path] = (int(size), int(changed))
        elif found := _PART.fullmatch(line):
            parts[found[2]] = int(found[1])
    return HubFiles(marked, there, parts)
