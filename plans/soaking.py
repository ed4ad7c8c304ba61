"""The soak: a new deployment is watched for as long as the operator says before it counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plans import paths
from plans.ends import last_end, traceback_end
from plans.verification import answer_of, parts_of, properties_of, read_answer
from plans.wishes import Service
from releases.log_lines import scan
from releases.table import get_release

DEFAULT_S = 60.0
"""Seconds of a soak where nothing is said: some defects show only under the first real load."""

MOST_S = 24 * 3600.0

UNREADY = 3
"""Looks at the ready endpoint, 5 s apart, that may not fail one after the other."""

_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)?")


def read_length(text: str) -> float:
    """Return the seconds that ``60``, ``60s``, ``10m`` or ``1h`` says. Raises ValueError."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r}: write a length such as 60s, 10m or 1h")
    seconds = float(found[1]) * {"m": 60, "h": 3600}.get(found[2] or "s", 1)
    if seconds > MOST_S:
        raise ValueError(f"{text!r}: a soak takes a day at most")
    return seconds


def soak_problem(lines: Iterable[str], service: Service, release: str) -> str | None:
    """Return why a soak failed, in one sentence; None where the service stood it.

    ``lines``: what the program of ``templates/soak.sh.j2`` printed. Never raises for any output.
    """
    parts = parts_of(lines)
    if "end" not in parts:
        return "its soak was cut off before it ended"
    after = " ".join(parts.get("seconds", [])).strip() or "?"
    before, now = (properties_of(parts.get(name, [])) for name in ("before", "after"))
    log = parts.get("log", [])
    fatal = [one.entry for one in scan(log, get_release(release)) if one.entry.is_fatal]
    why = f": {fatal[-1].meaning}" if fatal else ""
    keys = ("InvocationID", "NRestarts", "MainPID", "ActiveState")
    if not before.get("MainPID") or any(before.get(key) != now.get(key) for key in keys):
        end = last_end(parts.get("unit", []), paths.slice_of(service.name))
        told = why or (f": {end.sentence}" if end else "")
        error = traceback_end(log) if not fatal else None
        return f"it ended {after} s into its soak{told}" + (f" ({error[:200]})" if error else "")
    if fatal:
        return f"its log has a line known to be bad, {after} s into its soak{why}"
    unready = " ".join(parts.get("unready", [])).strip()
    if not unready.isdecimal() or int(unready) >= UNREADY:
        return f"it was not ready {unready or '?'} times in a row, {after} s into its soak"
    status, _ = answer_of(parts.get("ready", []))
    if status != "200":
        said = "nothing" if status == "000" else status
        return f"its ready endpoint says {said}, {after} s into its soak"
    status, body = answer_of(parts.get("answer", []))
    if status != "200":
        said = "no answer" if status == "000" else f"status {status}"
        return f"a generation at the end of its soak got {said}"
    problem = read_answer(body, service)[0]
    return f"at the end of its soak {problem}" if problem else None
