"""The places on a node that a change writes to: room, and file systems that take a write."""

from __future__ import annotations

from facts.records import Space, Survey, known
from plans import paths, text
from plans.refusals import Caution, Refusal
from plans.wishes import Wishes

LEAST_FREE = 16 * 1024 * 1024
"""Bytes that must be free where files are written: a deployment has less than 1 MB."""

LEAST_INODES = 64
"""Files that there must be room for: a deployment has some twenty."""

UNITS = "/etc/systemd/system"


def place_findings(survey: Survey, wishes: Wishes) -> tuple[list[Refusal], list[Caution]]:
    """Return what keeps a change from being written: asked only where there is a change.

    Kernels and weights that the server writes itself need more room than this looks for.
    """
    written = [paths.STATE, UNITS, wishes.paths.caches]
    if not all(service.is_local for service in wishes.services):
        written.append(wishes.paths.weights)
    refusals: dict[str, Refusal] = {}
    unknown = []
    for path in written:
        space = survey.spaces.get(path)
        if space is None or not known(space.free_bytes) or not known(space.read_only):
            unknown.append(path)
        if space is None:
            continue
        mount = space.mount if known(space.mount) else space.existing
        if space.read_only is True and mount not in refusals:
            refusals[mount] = _read_only(path, mount)
        elif known(space.free_bytes) and space.free_bytes < LEAST_FREE and mount not in refusals:
            refusals[mount] = _full(path, mount, space)
    said = f"room and mount of {', '.join(unknown)} could not be read: a write may fail there"
    return list(refusals.values()), [Caution("SPACE_UNKNOWN", said)] if unknown else []


def _read_only(path: str, mount: str) -> Refusal:
    return Refusal(
        "READ_ONLY",
        f"{path} lies on {mount}, which is mounted read-only",
        f"a file system that can be written to below {path}",
        f"Read `sudo dmesg | grep -i -e 'I/O error' -e remount` (a disk with errors is remounted so), "
        f"then: sudo mount -o remount,rw {mount}. Or name another place under `paths:`",
    )


def _full(path: str, mount: str, space: Space) -> Refusal:
    free = space.free_bytes if known(space.free_bytes) else 0
    return Refusal(
        "DISK_FULL",
        f"{text.size(free)} free on {mount} for {path}",
        f"{text.size(LEAST_FREE)} at least",
        f"make room: df -h {mount}; sudo du -xsh {mount.rstrip('/')}/* | sort -h | tail",
    )
