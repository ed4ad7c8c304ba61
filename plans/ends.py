"""How a service last ended, by who asked for it: told from systemd's words and its log's last lines.

Nothing here reads a log: the survey brings the lines that matter, the oldest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from facts.records import ServiceState, known
from plans import paths

Kind = Literal[
    "out of memory",
    "its start timed out",
    "its stop timed out",
    "crashed",
    "ended by itself",
    "stopped by the toolkit",
    "stopped by a shutdown of the node",
    "stopped by somebody on the node",
]

ASKED: dict[str, Kind] = {
    "the toolkit": "stopped by the toolkit",
    "a shutdown of the node": "stopped by a shutdown of the node",
    "somebody on the node": "stopped by somebody on the node",
}
"""Who the stop gate says asked for a stop."""

_ASKED = re.compile(r"stop gate: asked for by (.+)$", re.MULTILINE)
_EXITED = re.compile(r": Main process exited, code=(\w+), status=(\d+)(?:/(\w+))?")
_TIMED_OUT = re.compile(r": start(?:-\w+)? operation timed out")
_SILENT = re.compile(
    r"ready gate: nothing logged and next to nothing read for (\d+) s .*in phase: (.+)$", re.M
)
_NOT_AGAIN = re.compile(r"stop gate: not tried again: (.+)$", re.MULTILINE)
_STOP_TIMED_OUT = re.compile(r": State 'stop-\w+' timed out")
_PHASE = re.compile(r"ready gate: (.+) \(after \d+ s\)$")
_GATE_LOST_IT = re.compile(
    r"ready gate: the server's process has ended after .* in phase: (.+)$", re.M
)
_OOM = re.compile(r"^oom-kill:.*?oom_memcg=([^,]*),.*?task_memcg=([^,]*)")
_OOM_UNIT = re.compile(r"killed by the OOM killer|Failed with result 'oom-kill'")
_FORCED = "health check failed. Force exiting"
_CRASHES = ("SIGQUIT received", "crashed with exit code", "Scheduler hit an exception")
# systemd up to 249 calls a unit by its Description= alone, later ones by its name as well.
_NAMED = r" (?:sglang@|SGLang server \S+\.+$)"
_STARTING = re.compile("Starting" + _NAMED)
_STARTED = re.compile("Started" + _NAMED)
_STOPPING = re.compile("Stopping" + _NAMED)
_ENDS = re.compile(r": (?:Failed with result '[a-z-]+'|Deactivated successfully)\.$")


@dataclass(frozen=True)
class End:
    """How a service last ended: the kind, and what is known beside it, in words."""

    kind: Kind
    detail: str = ""
    phase: str | None = None  # of its start, where it ended while it started
    lost: bool = False  # its log tells that requests in flight were lost
    given_up: str = ""  # why the node does not start it again by itself

    @property
    def sentence(self) -> str:
        """It in a few words."""
        said: list[str] = [self.kind, *([self.detail] if self.detail else [])]
        said += [f"in phase: {self.phase}"] if self.phase else []
        said += ["requests in flight were lost"] if self.lost else []
        said += [f"not tried again: {self.given_up}"] if self.given_up else []
        return ", ".join(said)


def traceback_end(lines: Iterable[str]) -> str | None:
    """Return the line that ends the last Python traceback in a log: the error; None without one."""
    end, inside = None, False
    for line in lines:
        if "Traceback (most recent call last):" in line:
            inside = True
        elif inside and line.strip() and not line.startswith((" ", "\t")):
            end, inside = line.strip(), False
    return end


def end_of(state: ServiceState) -> End | None:
    """Return how a service last ended, from its survey; None where that does not tell."""
    if not known(state.last_lines):
        return None
    return last_end(state.last_lines, paths.slice_of(state.name))


def last_end(lines: Iterable[str], slice_: str) -> End | None:
    """Return how a service last ended; None where the lines tell of no end.

    ``lines``: of its unit's journal, systemd's and the gates' own among them, and the kernel's
    ``oom-kill:`` lines. ``slice_``: that of its container.
    """
    every = [line.rstrip() for line in lines]
    run = _last_run([line for line in every if not line.startswith("oom-kill:")])
    if run is None:
        return None
    text = "\n".join(run)
    if found := _NOT_AGAIN.search(text):
        # The stop that keeps it from its next start is nobody's.
        before = [line for line in run if not _STOPPING.match(line)]
        return replace(_end(before, "\n".join(before), every, slice_), given_up=found[1])
    return _end(run, text, every, slice_)


def _end(run: list[str], text: str, every: list[str], slice_: str) -> End:
    lost = _FORCED in text
    phase = _phase(run, text)
    whose = _memory(text, every, slice_)
    if whose is not None:
        return End("out of memory", whose, phase)
    if _STOP_TIMED_OUT.search(text):
        return End("its stop timed out", "", None, lost=True)
    if silent := _SILENT.search(text):
        return End("its start timed out", f"nothing moved for {silent[1]} s", silent[2])
    if _TIMED_OUT.search(text):
        return End("its start timed out", "", phase)
    if asked := _ASKED.search(text):
        return End(ASKED.get(asked[1], "stopped by somebody on the node"), "", None, lost)
    # systemd says so of a stop that a job asked for, and of no other.
    if any(_STOPPING.match(line) for line in run):
        return End("stopped by somebody on the node", "", phase, lost)
    return _by_itself(text, phase, lost)


def _by_itself(text: str, phase: str | None, lost: bool) -> End:
    exited = _EXITED.search(text)
    how = "status 0"
    if exited:
        how = f"{'signal' if exited[1] == 'killed' else 'status'} {exited[2]}"
    # 128 and more: what --init makes of a signal. As process 1 itself it would leave with 0.
    dead = exited is not None and (exited[1] in ("killed", "dumped") or int(exited[2]) >= 128)
    if dead or any(word in text for word in _CRASHES):
        return End("crashed", how, phase, lost)
    return End("ended by itself", how, phase, lost)


def _last_run(lines: list[str]) -> list[str] | None:
    """Return the lines of the last run that has ended, or None."""
    ends = [place for place, line in enumerate(lines) if _ENDS.search(line)]
    if not ends:
        return None
    starts = [p for p, line in enumerate(lines[: ends[-1]]) if _STARTING.match(line)]
    return lines[starts[-1] if starts else 0 : ends[-1] + 1]


def _phase(run: list[str], text: str) -> str | None:
    """Return the phase of the start in which it ended; None where it had come up."""
    if any(_STARTED.match(line) for line in run):
        return None
    if found := _GATE_LOST_IT.search(text):
        return found[1]
    return next((found[1] for line in reversed(run) if (found := _PHASE.search(line))), None)


def _memory(text: str, lines: list[str], slice_: str) -> str | None:
    """Return whose memory ran out, where the kernel ended a process of the service for it."""
    exited = _EXITED.search(text)
    killed = exited is None or exited[1] == "killed" or int(exited[2]) >= 128
    for line in reversed(lines):
        found = _OOM.search(line)
        # Its lines are of the whole boot: one that another end explains is not taken.
        if found is None or not killed or f"/{slice_}/" not in f"{found[2]}/":
            continue
        whose = found[1]
        if f"/{slice_}" in whose:
            return f"the limit of {slice_}"
        return "the memory of the node" if whose in ("", "/", "(null)") else f"the limit of {whose}"
    return "the limit of its unit" if _OOM_UNIT.search(text) else None
