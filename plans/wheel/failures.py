"""What uv says when it fails, as a refusal: what was seen, what is needed, what mends it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plans.mirrors import Mirrors
from plans.refusals import Refusal

MARK = "@uv failed"
"""Begins uv's own words in what the program on the node prints."""

_HASH = re.compile(r"Hash mismatch for `([^`]+)`")
_DOWNLOAD = re.compile(r"Failed to (?:download|fetch)[: ]+`?([^`\s]+)`?")
_NO_VERSION = re.compile(r"there is no version of (\S+)")
_NO_WHEEL = re.compile(r"(\S+) has no (?:usable )?wheels?|(\S+) has no wheels with a matching")
_NOT_FOUND = re.compile(r"(?:Because|because) (\S+) was not found")
_COMPUTED = re.compile(r"Computed:\s+(sha256:[0-9a-f]{64})")
_HOST = re.compile(r"https?://[^/\s`)]+")
_NETWORK = ("error sending request", "client error (Connect)", "dns error", "timed out",
            "Connection refused", "Network unreachable", "HTTP status")  # fmt: skip


def failure_in(
    lines: Iterable[str], service: str | None = None, mirrors: Mirrors | None = None
) -> Refusal | None:
    """Return what uv's words mean, or None where they are of another kind, or there are none.

    ``mirrors``: those that uv was given; one that did not answer is named with its address.
    """
    said = list(lines)
    marked = next((at for at, line in enumerate(said) if line.startswith(MARK)), None)
    if marked is None:
        return None
    words = [line.strip() for line in said[marked + 1 :] if line.strip()]
    text = "\n".join(words)

    def refusal(code: str, seen: str, needed: str, advice: str) -> Refusal:
        return Refusal(code, seen, needed, advice, service)

    wrong = _HASH.search(text)
    if wrong is not None:
        computed = _COMPUTED.search(text)
        came = f"; what came has {computed[1]}" if computed else ""
        return refusal(
            "PACKAGE_HASH",
            f"{wrong[1]} is not the file that was locked{came}",
            "the package with the hash that the lock has: another file is never installed",
            "find out why the index (or mirror) has another file; a damaged one in uv's cache goes "
            "with: rm -rf of the package cache, then apply again",
        )
    of_package = _DOWNLOAD.search(text)
    what = of_package[1] if of_package else "the packages"
    if "No space left on device" in text:
        return refusal(
            "DISK_FULL",
            f"the disk was full when {what} was unpacked",
            "room for the environment and for uv's cache",
            "df -h /opt/sglang /var/cache/sglang on the node; make room, then apply again",
        )
    none = _NO_VERSION.search(text) or _NO_WHEEL.search(text) or _NOT_FOUND.search(text)
    if none is not None:
        package = next(group for group in none.groups() if group)
        return refusal(
            "PACKAGE_NO_WHEEL",
            f"the index has no wheel of {package} that this node's Python and system can install",
            "each package of the lock, as a wheel: nothing is built from source",
            "look whether the index (or mirrors: index) has it; a mirror needs all of the lock",
        )
    if any(sign in text for sign in _NETWORK):
        cause = next((w for w in reversed(words) if w.startswith("cause: ")), words[-1])
        seen = f"{what} could not be fetched: {cause.removeprefix('cause: ')}"
        mirror = _mirror_in(text, mirrors)
        if mirror is not None:
            name, address = mirror
            does = "answers with an error" if "HTTP status" in text else "does not answer the node"
            return refusal(
                "PACKAGES_UNREACHABLE",
                f"the mirror {address} (mirrors: {name}) {does}: {seen}",
                "the mirror that the inventory names, with what the lock has, reached from the node",
                f"ask it on the node: curl -I {address}; start it, mend its address in the "
                "inventory, or install from a bundle",
            )
        return refusal(
            "PACKAGES_UNREACHABLE",
            seen,
            "the package index, reached from the node",
            "set a proxy for the node (http_proxy, https_proxy in /etc/environment), name mirrors: "
            "{index: URL} in the inventory, or install from a bundle",
        )
    last = next((w for w in words if w.startswith("error: ")), words[-1] if words else "nothing")
    causes = [w.removeprefix("cause: ") for w in words if w.startswith("cause: ")]
    return refusal(
        "ENVIRONMENT_FAILED",
        ": ".join([last.removeprefix("error: "), *causes[-1:]]),
        "packages that install",
        "read uv's words above; nothing was put in place, and the next apply begins anew",
    )


def _mirror_in(text: str, mirrors: Mirrors | None) -> tuple[str, str] | None:
    """Return the key and the address of the mirror that uv's words name by its host, or None."""
    given = mirrors.model_dump(exclude_none=True) if mirrors is not None else {}
    # The files of an index are often beside it: at its host, and not below its address.
    asked = set(_HOST.findall(text))
    same = [(name, at) for name, at in given.items() if asked.intersection(_HOST.findall(at))]
    # Of several at one host the one whose address stands there, if any does.
    return next((one for one in same if one[1] in text), next(iter(same), None))
