"""How a program on a node says that it refused, and what that means."""

from __future__ import annotations

import base64

from plans.refusals import Refusal

REFUSAL_MARK = "@refused "
"""Begins the line by which a program on the node says that it refused: a code, a sentence and,
where a command mends it, a bar and that command."""

NEEDED = {
    "APPLY_RUNNING": (
        "no other apply, restart, stop or remove on this node",
        "wait for it, then run this again; of one that is dead the lock ends by itself "
        "(sglang-node explain APPLY_RUNNING)",
    ),
    "STALE_PLAN": (
        "the node as the plan saw it",
        "plan again: sglang-node plan, then sglang-node apply",
    ),
    "DISK_FULL": ("16 MiB and 64 inodes at least", "make room, then run the same again"),
    "BUNDLE_DAMAGED": (
        "the bundle's files as they were made",
        "run it again; where it happens again look at the node's disk: sudo dmesg | grep -i error",
    ),
    "CACHE_NOT_OURS": (
        "a directory of the server's user alone (root, where it is a container): code is loaded "
        "from it",
        "look at what is in it (sglang-node explain CACHE_NOT_OURS)",
    ),
    "PACKAGES_NOT_INSTALLED": (
        "packages of the distribution that the wheel runtime needs",
        "install them on the node by hand, or mend its package sources; then apply again",
    ),
    "PYTHON_MISSING": (
        "a Python of the lock's minor version, with its headers",
        "name mirrors: {python: URL} in the inventory (a mirror of uv's Python builds), install that "
        "Python with its headers on the node, or install from a bundle",
    ),
    "ENVIRONMENT_NOT_WHOLE": (
        "an environment whose every part is there before it is used",
        "apply again: what is not whole is made anew; if it stays so, sglang-node explain "
        "ENVIRONMENT_NOT_WHOLE",
    ),
}
"""What is needed, and what mends it, for each code by which a program on a node refuses."""


def refusal_in(line: str) -> Refusal | None:
    """Return the refusal that a line of a program's output says, or None where it says none."""
    if not line.startswith(REFUSAL_MARK):
        return None
    code, _, sentence = line.removeprefix(REFUSAL_MARK).partition(" ")
    if code not in NEEDED:
        return None
    seen, _, command = sentence.partition("|")
    needed, advice = NEEDED[code]
    if command and code == "DISK_FULL":
        advice = f"make room: {command}"
    elif command:
        advice = f"look at what is in it, then: sudo sh -c {command!r}"
    return Refusal(code, seen, needed, advice)


def base64_lines(text: str) -> str:
    """Return a text as lines of base64, for a here-document of a program."""
    return base64.encodebytes(text.encode()).decode().rstrip("\n")
