"""Which release a hand-made start runs, and as what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from locks.references import ReferenceRefused, parse_reference
from plans.adopt.records import Found, Note
from plans.renames import Renamed, rewritten
from releases.schema import Release
from releases.table import RELEASES, newest
from releases.versions import parse_version

_IN_TAG = re.compile(r"(?:^|[^0-9.])v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?post[0-9]+)?)(?![0-9.])")


@dataclass(frozen=True)
class Runs:
    """The release whose flags are read, and what the entry says of it."""

    release: Release
    service: dict[str, Any]
    lost: tuple[Note, ...] = ()
    differs: tuple[str, ...] = ()


def runs(found: Found) -> Runs:
    """Return which release a server is, by its package's version or its image's tag."""
    image = found.container.image if found.container else None
    version = found.version or _of_tag(image)
    known = RELEASES.get(version) if version else None
    service: dict[str, Any] = {"runtime": "image" if image else "wheel"}
    lost: list[Note] = []
    differs: list[str] = []
    if known is not None:
        service["release"] = known.version
    else:
        what = (
            f"SGLang {version} is no release that the toolkit knows ({', '.join(RELEASES)})"
            if version
            else "which release it is could not be seen"
        )
        differs.append(
            f"{what}: the entry names none, and the newest that the node can run is planned"
        )
    if image:
        own, said = _image_key(image, known)
        service |= own
        lost += said
    return Runs(known or _nearest(version), service, tuple(lost), tuple(differs))


def of_older(
    release: Release, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Renamed]]:
    """Return arguments with the names of a release, where an older one says what they became.

    What has no name there stays as it is.
    """
    out: dict[str, Any] = {}
    renamed: list[Renamed] = []
    for name, value in arguments.items():
        for older in reversed(RELEASES.values()) if name not in release.flags else ():
            if older.flags.get(name) is None:
                continue
            new, said, _ = rewritten(older, {name: value})
            if said and all(one in release.flags and one not in arguments for one in new):
                out |= new
                renamed += said
                break
        else:
            out[name] = value
    return out, renamed


def _of_tag(image: str | None) -> str | None:
    tag = (image or "").partition("@")[0].rpartition("/")[2].partition(":")[2]
    found = _IN_TAG.search(tag)
    return found[1] if found else None


def _nearest(version: str | None) -> Release:
    """Return the oldest release of the table that is not older; its flags are the likeliest."""
    for release in RELEASES.values() if version else ():
        if parse_version(release.version) >= parse_version(version or ""):
            return release
    return newest()


def _image_key(image: str, release: Release | None) -> tuple[dict[str, Any], list[Note]]:
    try:
        reference = parse_reference(image)
    except ReferenceRefused:
        why = "its tag moves or is none: the toolkit takes a release's image, pinned by digest"
        return {}, [Note(f"image {image}", why)]
    if reference.registry == "docker.io" and reference.repository == "lmsysorg/sglang":
        own = {one.tag for one in release.images} if release else set()
        if f"{reference.repository}:{reference.tag}" in own or reference.tag is None:
            return {}, []
        why = "the toolkit takes the image of the release that this node's driver and GPUs can run"
        return {}, [Note(f"image {image}", why)]
    if release is None:
        why = "it names no release that the toolkit knows; write image and release of one"
        return {}, [Note(f"image {image}", why)]
    return {"image": image}, []
