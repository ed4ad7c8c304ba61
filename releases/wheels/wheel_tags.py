"""Which wheels a Python can install, the best first: by the tags in their file names."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from packaging.tags import Tag, compatible_tags, cpython_tags

# Names from before a tag said its glibc itself (PEP 513, 571, 599), with the glibc each means.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST = {"x86_64": 5, "aarch64": 17}


def _platforms(glibc: str, architecture: str) -> Iterator[str]:
    newest = int(glibc.partition(".")[2])
    for minor in range(newest, _OLDEST[architecture] - 1, -1):
        yield f"manylinux_2_{minor}_{architecture}"
        if minor in _OLD_NAMES:
            yield f"{_OLD_NAMES[minor]}_{architecture}"
    yield f"linux_{architecture}"


@functools.cache
def supported(python: str, glibc: str, architecture: str) -> Mapping[Tag, int]:
    """Return the tags that such a Python can install, each with its rank: 0 is the best.

    PYTHON is `3.12`, GLIBC the oldest C library to be served (`2.34`), ARCHITECTURE x86_64 or
    aarch64.
    """
    major, _, minor = python.partition(".")
    version = (int(major), int(minor))
    own = f"cp{major}{minor}"
    platforms = list(_platforms(glibc, architecture))
    out: dict[Tag, int] = {}
    for tags in (
        cpython_tags(version, abis=[own], platforms=platforms),
        compatible_tags(version, interpreter=own, platforms=platforms),
    ):
        for tag in tags:
            out.setdefault(tag, len(out))
    return out
