"""Who listens on TCP: ``ss -H -ltnp``, else the kernel's own tables."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable

from facts import fields
from facts.records import ABSENT, Listener, Unknown
from facts.sections import Sections

_PROCESS = re.compile(r'users:\(\("([^"]*)",pid=(\d+)')
_LISTEN = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h


def parse_listeners(sections: Sections) -> tuple[Listener, ...] | Unknown:
    """Return the sockets that listen, in the order given; or why that is not known."""
    section = sections.get("listeners.ss")
    if section is None:
        return sections.missing("network")
    if section.rc == 0:
        return _from_ss(section.out)
    tables = (sections.get("listeners.tcp"), sections.get("listeners.tcp6"))
    if all(table is None or table.rc != 0 for table in tables):
        return section.failure or ABSENT
    return tuple(
        listener for table in tables if table is not None for listener in _from_proc(table.out)
    )


def _from_ss(lines: Iterable[str]) -> tuple[Listener, ...] | Unknown:
    """Lines such as ``LISTEN 0 128 127.0.0.1:30000 0.0.0.0:* users:(("python3",pid=1,fd=3))``.

    One line that is no such line makes all of it unknown: it may be the one that matters. So does
    none at all: a node that is surveyed has a listener, its sshd.
    """
    listeners = []
    for line in lines:
        if not line.strip():
            continue
        words = line.split()
        host, _, port = words[3].rpartition(":") if len(words) >= 5 else ("", "", "")
        number = fields.number("Listener.port", port)
        if isinstance(number, Unknown):
            return Unknown("malformed", line[:80])
        found = _PROCESS.search(line)
        listeners.append(
            Listener(
                address=_address(host),
                port=number,
                pid=fields.number("Listener.pid", found[2] if found else None),
                process=fields.text("Listener.process", found[1] if found else None),
            )
        )
    return tuple(listeners) or ABSENT


def _address(host: str) -> str:
    """Return an address without brackets and interface; ``*`` is what ss prints for ``::``
    where a socket takes IPv4 as well."""
    bare = host.strip("[]").partition("%")[0].strip("[]")
    return "::" if bare == "*" else bare


def _from_proc(lines: Iterable[str]) -> Iterable[Listener]:
    for line in lines:
        words = line.split()
        if len(words) < 4 or words[3] != _LISTEN:
            continue
        address, _, port = words[1].partition(":")
        try:
            yield Listener(_from_hex(address), int(port, 16), ABSENT, ABSENT)
        except (ValueError, struct.error):
            continue


def _from_hex(address: str) -> str:
    """Return an address of the kernel's tables: 32-bit words, each in the host's byte order.

    All machines supported here are little-endian.
    """
    raw = bytes.fromhex(address)
    words = [raw[index : index + 4][::-1] for index in range(0, len(raw), 4)]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words))
