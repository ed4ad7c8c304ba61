"""The phases of a start as the ready gate tells them: patterns of the log, for awk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from releases.log_lines import LOG_LINES, PHASES
from releases.versions import in_specifiers


@dataclass(frozen=True)
class GatePhase:
    """One phase: what people read, and the test that awk puts to a line."""

    name: str
    test: str


@cache
def gate_phases(version: str) -> tuple[GatePhase, ...]:
    """Return the phases of a release's log in order, each with one awk test for all its lines."""
    found = []
    for phase in PHASES:
        patterns = [
            awk_pattern(entry.pattern)
            for entry in LOG_LINES
            if entry.phase == phase and in_specifiers(version, entry.releases)
        ]
        if patterns:
            test = " || ".join(f"/{pattern}/" for pattern in patterns)
            found.append(GatePhase(phase.replace("_", " "), test))
    return tuple(found)


def awk_pattern(pattern: str) -> str:
    """Return a pattern of the log table as awk's extended regular expression.

    The table's patterns of phases use nothing that awk has not, but for ``\\d`` and ``\\b``
    (which is a backspace to mawk); a test puts every sample line to the result.
    """
    return pattern.replace(r"\d", "[0-9]").replace(r"\b", "").replace("/", r"\/")
