"""A run over many nodes in one line: how many came to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

MOST = 8
"""Names that are shown in a row; of more the first three are."""

WRONG = ("failed", "not reached", "not verified", "not well", "refused", "not begun")
"""What can be wrong with a node at the end of a run, in the order in which it is told."""

ORDER = ("unchanged", "changed and ready", "changed", "to change", "unresolved", "refused",
         "not verified", "failed", "not reached", "not begun")  # fmt: skip


def few(names: Sequence[str], most: int = MOST, shown: int = 3) -> str:
    """Return names as people read them: of more than ``most`` the first, and how many more."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def went_wrong(document: dict[str, Any]) -> str | None:
    """Return which of ``WRONG`` a node's document tells of, of whatever command; None: nothing."""
    error, upgrade = document.get("error"), document.get("upgrade")
    if error:
        return "not reached" if error["code"] == "UNREACHABLE" else "failed"
    if document.get("begun") is False or upgrade == "not begun":
        return "not begun"
    if document.get("failures"):
        return "failed"
    if document.get("refusals") or upgrade == "refused":
        return "refused"
    if any(not one["ok"] for one in document.get("verified", {}).values()):
        return "not verified"
    if upgrade == "failed":
        return "failed"
    if any(not one.get("ok", True) for one in document.get("services", ())):
        return "not well"
    return None


def came_to(document: dict[str, Any]) -> str:
    """Return in a word or two what a node's document of plan or apply says."""
    if (wrong := went_wrong(document)) is not None:
        return wrong
    if "verified" in document:
        return "changed and ready" if document["verified"] else "changed"
    if document.get("unresolved"):
        return "unresolved"
    return "to change" if document.get("changes") else "unchanged"


def lasting(documents: Sequence[dict[str, Any]]) -> tuple[dict[str, str], str]:
    """Return the nodes that a next run has to do with, each with its word of ``WRONG``, and the
    line that tells how many came to which."""
    kept = {one["node"]: word for one in documents if (word := went_wrong(one)) is not None}
    of = f" of {len(documents)} nodes"
    parts: list[str] = []
    for word in WRONG:
        if names := [name for name, its in kept.items() if its == word]:
            parts.append(f"{len(names)}{'' if parts else of} {word}: {few(names)}")
    return kept, "; ".join(parts)


def summary(documents: Iterable[dict[str, Any]]) -> str | None:
    """Return the line for the nodes of a plan or an apply; None for one alone, or other commands."""
    given = list(documents)
    if len(given) < 2 or not any("changes" in one for one in given):
        return None
    counts = Counter(came_to(one) for one in given)
    parts = [f"{counts[word]} {word}" for word in ORDER if counts[word]]
    return f"{len(given)} nodes: {', '.join(parts)}"
