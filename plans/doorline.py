"""The door's line of ``status``, from a survey alone."""

from __future__ import annotations

from facts.records import Survey, known
from plans import paths
from plans.states import ServiceLine
from releases.door import ROUTER, VERSION


def door_line(survey: Survey) -> ServiceLine | None:
    """Return the door's line; None where the node has none."""
    door = survey.door
    if not door.is_there:
        return None
    said = ", ".join(f"{name} {one.state}" for name, one in door.servers.items())
    serving = [name for name, one in door.servers.items() if one.state == "in"]
    if door.active_state == "active" and door.servers:
        # Halves of pairs serve together, or not at all.
        serves = serving and door.pair in ("answers", "tried") if known(door.pair) else serving
        word, bad = f"serving: {said}" if serves else f"nobody to serve: {said}", not serves
        if door.pair == "fails":
            word = f"no prefill/decode pair generates: {said}"
    else:
        word, bad = f"{door.active_state}", True
    drift = []
    if known(door.settings) and door.settings != door.current:
        drift.append("runs with other settings than those in place")
    if door.unit_file_state != "enabled":
        drift.append("does not start with the node")
    if door.need_daemon_reload == "yes":
        drift.append("needs daemon-reload")
    return ServiceLine(
        node=survey.node,
        name=paths.DOOR,
        release=VERSION,
        runtime=ROUTER,
        state=word,
        since=door.state_since if known(door.state_since) else "-",
        drift=tuple(drift),
        bad=bad,
    )
