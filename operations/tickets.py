"""Who holds the apply lock of a node in this run, and whether another holder is dead."""

from __future__ import annotations

import getpass
import hashlib
import os
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

from pyinfra.api.host import Host

from operations.realhost import real_host
from plans.applylock import Ticket


@dataclass
class Held:
    """The ticket of this run for one node, and whether its lock was taken."""

    ticket: Ticket
    taken: bool = False


_held: WeakKeyDictionary[Host, Held] = WeakKeyDictionary()


def held_of(host: Host) -> Held:
    """Return this run's ticket for a node; a new one the first time."""
    host = real_host(host)
    return _held.setdefault(host, Held(new_ticket()))


def new_ticket() -> Ticket:
    """Return a ticket of this process: its token says the machine and the process."""
    pid = os.getpid()
    return Ticket(f"{_machine()}-{pid}-{secrets.token_hex(8)}", f"{_user()}@{_name()} (pid {pid})")


def is_dead(token: str) -> bool:
    """Say whether a token is of a process of this very machine that is no more.

    Of another machine's process nothing is known, and unknown is not dead.
    """
    machine, _, rest = token.partition("-")
    number = rest.partition("-")[0]
    if machine != _machine() or not number.isascii() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


@cache
def _machine() -> str:
    """Return a short name for this machine, and its namespace of process ids."""
    parts = [socket.gethostname()]
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            parts.append(Path(path).read_text(encoding="ascii").strip())
        except (OSError, UnicodeDecodeError):
            parts.append("")
    try:
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _user() -> str:
    try:
        return _plain(getpass.getuser())
    except (OSError, KeyError, ImportError):
        return str(os.getuid())


def _name() -> str:
    return _plain(socket.gethostname().partition(".")[0])


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and not c.isspace())[:60] or "unknown"
