"""How a program on a node says that it refused, and what that means."""

from __future__ import annotations

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
    "CACHE_NOT_OURS": (
        "a directory of root's that nobody else may write: code is loaded from it",
        "look at what is in it (sglang-node explain CACHE_NOT_OURS)",
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
    if command:
        advice = f"look at what is in it, then: sudo sh -c {command!r}"
    return Refusal(code, seen, needed, advice)
