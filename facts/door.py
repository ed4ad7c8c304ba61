"""What a survey reads of the door before the servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from facts.unknown import ABSENT, Unknown


@dataclass(frozen=True)
class DoorServer:
    """A server as the door has it: its state is ``in``, ``down``, ``leaving``, or ``out-`` and why."""

    state: str
    url: str


@dataclass(frozen=True)
class DoorTls:
    """The certificate that the door is to have, and what is known of its key: ``fits``,
    ``differs``, ``encrypted``, ``unreadable``, ``absent`` or ``unknown``; ``holds-key`` where the
    file of the certificate holds a private key too, and was not read for that."""

    certificate: str | Unknown = ABSENT
    key: str | Unknown = ABSENT


WORD = r"[0-9A-Za-z_.:+-]+(?: [0-9A-Za-z_.:+-]+){0,4}"
"""A unit's state, a number, a key or a time: what is not of this form is not believed."""

EXAMPLES: Mapping[str, str] = {
    "State.load_state": "loaded",
    "State.active_state": "active",
    "State.unit_file_state": "enabled",
    "State.main_pid": "812",
    "State.state_since": "Mon 2026-11-30 15:20:00 UTC",
    "State.need_daemon_reload": "no",
    "State.current": "0123456789abcdef",
    "State.settings": "0123456789abcdef",
    "State.keys": "0" * 64,
    "State.pid": "812",
    "State.certificate": "0" * 64,
    "State.until": "1796000000",
    "State.pair": "answers",
    "Tls.key": "fits",
}
"""The fields that are read from a line of text, and how one looks."""

DOOR_RECORDS = ("State.servers", "State.tls", "Tls.certificate", "Server.state", "Server.url")
"""Those that the parser puts together."""


@dataclass(frozen=True)
class DoorState:
    """The door on a node; all is absent where there is none."""

    load_state: str | Unknown = ABSENT
    active_state: str | Unknown = ABSENT
    unit_file_state: str | Unknown = ABSENT
    main_pid: str | Unknown = ABSENT
    state_since: str | Unknown = ABSENT
    need_daemon_reload: str | Unknown = ABSENT
    current: str | Unknown = ABSENT  # key of the settings that the link leads to
    settings: str | Unknown = ABSENT  # key of those that it runs with, as it says itself
    keys: str | Unknown = ABSENT  # checksum of the file of keys that it runs with
    pid: str | Unknown = ABSENT  # of the process that said so
    certificate: str | Unknown = ABSENT  # checksum of the one that it shows to clients
    until: str | Unknown = ABSENT  # its end, seconds since 1970
    pair: str | Unknown = ABSENT  # of halves: whether a pair answers, fails, is tried; nobody
    tls: DoorTls = DoorTls()
    servers: Mapping[str, DoorServer] = field(default_factory=dict)  # by name

    @property
    def is_there(self) -> bool:
        """Whether anything of a door is on the node."""
        return self.current != ABSENT or self.load_state not in (ABSENT, "not-found")


NO_DOOR = DoorState()
