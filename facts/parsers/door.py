"""The door before the servers: its unit, and what it says itself."""

from __future__ import annotations

from facts import fields
from facts.door import DoorServer, DoorState, DoorTls
from facts.sections import Sections
from facts.unknown import ABSENT, Unknown

PROPERTIES = {
    "LoadState": "load_state",
    "ActiveState": "active_state",
    "UnitFileState": "unit_file_state",
    "MainPID": "main_pid",
    "StateChangeTimestamp": "state_since",
    "NeedDaemonReload": "need_daemon_reload",
}
SAID = ("settings", "keys", "pid", "certificate", "until", "pair")


def parse_door(sections: Sections) -> DoorState:
    """Return the door of a node; a record in which all is absent where there is none."""
    section = sections.get("door")
    tls = _tls(sections)
    failure = sections.missing("door") if section is None else section.failure
    if section is None or failure is not None:
        failure = failure or ABSENT
        return DoorState(load_state=failure, active_state=failure, current=failure, tls=tls)
    found: dict[str, str | Unknown] = {}
    servers: dict[str, DoorServer] = {}
    for line in section.out:
        word, _, rest = line.partition(" ")
        name, is_property, value = line.partition("=")
        if is_property and name in PROPERTIES:
            key = PROPERTIES[name]
            found[key] = fields.text(f"DoorState.{key}", value)
        elif word == "link" and rest:
            found["current"] = fields.text("DoorState.current", rest)
        elif word == "state":
            parts = rest.split(" ")
            if parts[0] == "server" and len(parts) == 4:
                servers[parts[1]] = DoorServer(parts[2], parts[3])
            elif parts[0] in SAID and len(parts) == 2:
                found[parts[0]] = fields.text(f"DoorState.{parts[0]}", parts[1])
    return DoorState(servers=servers, tls=tls, **found)


def _tls(sections: Sections) -> DoorTls:
    section = sections.get("door.tls")
    if section is None:
        return DoorTls()
    if section.failure is not None:
        return DoorTls(section.failure, section.failure)
    word, *lines = section.out or ("",)
    text = "\n".join(lines).strip()
    return DoorTls(text or ABSENT, fields.text("DoorTls.key", word))
