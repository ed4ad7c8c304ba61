"""Host keys: one that is not known is refused or, on request, written down; another one always is
refused.

pyinfra asks about unknown ones on the terminal, for many nodes at once, and about a jump host's
whatever the inventory says. What ~/.ssh/config or the host's data say holds here as well: only
where they leave it to a question the answer is no.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gevent.lock import RLock
from paramiko import MissingHostKeyPolicy, PKey, SSHException
from paramiko.hostkeys import HostKeyEntry, HostKeys
from paramiko.ssh_exception import BadHostKeyException
from pyinfra.connectors.sshuserclient import client
from typing_extensions import override

GLOBAL = "/etc/ssh/ssh_known_hosts"
"""Known hosts of everybody on this machine: OpenSSH reads them, and so do we."""

REVOKED = "@revoked"
"""Begins a line with a key that must not be taken (sshd(8)); paramiko passes it over."""

_lock = RLock()


class UnknownHostKey(SSHException):
    """A host showed a key, and no file says which is its own."""

    def __init__(self, name: str, key: PKey, file: str) -> None:
        self.name, self.key, self.file = name, key, file
        super().__init__(f"no host key for {name} is known")


class RevokedHostKey(SSHException):
    """A host showed a key of which a file says that it is nobody's any more."""

    def __init__(self, key: PKey, file: str, number: int) -> None:
        super().__init__(
            f"it shows the host key {shown(key)}, which {file} line {number} has revoked: make the "
            "host a new one (ssh-keygen -A), and find out how the old one came into other hands"
        )


class Careful(MissingHostKeyPolicy):
    """Refuses a host key that is not known, or writes it down and tells of it."""

    def __init__(self, takes: bool, tell: Callable[[str], None]) -> None:
        self._takes, self._tell = takes, tell

    @override
    def missing_host_key(self, client: Any, hostname: str, key: PKey) -> None:
        """Look where pyinfra does not; then refuse or take the key. Raises SSHException."""
        file = client._host_keys_filename or str(Path("~/.ssh/known_hosts").expanduser())
        with _lock:
            # In the lock: of many nodes behind one jump host the first has written its key by now.
            for name in _names(hostname):
                known = [entry.key for _, _, entry in entries((file, GLOBAL), name)]
                if key in known:
                    return
                if known:
                    raise BadHostKeyException(hostname, key, known[0])
            if not self._takes:
                raise UnknownHostKey(_names(hostname)[0], key, file)
            append(Path(file), _names(hostname)[0], key)
        self._tell(f"{_names(hostname)[0]}: new host key {shown(key)}, written to {file}")


class Unchecked(MissingHostKeyPolicy):
    """Takes any host key for this once, as the operator's own words are, and says so."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    @override
    def missing_host_key(self, client: Any, hostname: str, key: PKey) -> None:
        """Tell of a host key that is not checked."""
        self._tell(f"{_names(hostname)[0]}: host key {shown(key)} is not checked, as configured")


def watch(tell: Callable[[str], None], *, accept_new: bool) -> None:
    """Let pyinfra ask nobody about host keys. With ``accept_new`` those of hosts that have none in
    any file are taken; ``tell`` gets a sentence about each that is."""

    def policy(said: str | None) -> MissingHostKeyPolicy:
        said = said.lower() if said else None
        if said in ("no", "off"):  # the operator's own words, in ~/.ssh/config or the inventory
            return Unchecked(tell)
        return Careful(accept_new or said == "accept-new", tell)

    client.get_missing_host_key_policy = policy


def _names(hostname: str) -> tuple[str, ...]:
    """Return the names under which OpenSSH would look a host up: lower case, no port 22."""
    plain = hostname.lower()
    if plain.startswith("[") and plain.endswith("]:22"):  # pyinfra has the port as text
        plain = plain[1:-4]
    return (plain, hostname) if plain != hostname else (plain,)


def entries(
    files: Iterable[str], name: str, marker: str = ""
) -> Iterator[tuple[str, int, HostKeyEntry]]:
    """Give each line of known hosts that is about ``name``: file, line number, entry.

    ``marker``: the word with which the line begins, of which sshd(8) knows two; else none.
    """
    for file in dict.fromkeys(files):
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            try:
                found = line.strip()
                if marker and found.split()[:1] != [marker]:
                    continue
                entry = HostKeyEntry.from_line(found.removeprefix(marker).strip(), number)
            except Exception:  # a line that paramiko cannot read is about nobody
                continue
            if entry is not None and _is_about(name, entry):
                yield file, number, entry


def _is_about(name: str, entry: HostKeyEntry) -> bool:
    """Say whether a line is about a host: by its name, hashed or not, or by patterns (sshd(8))."""
    if HostKeys()._hostname_matches(name, entry):  # type: ignore[attr-defined]
        return True
    patterns = [one.lower() for one in entry.hostnames or ()]
    if any(_fits(name, one[1:]) for one in patterns if one.startswith("!")):
        return False
    return any(_fits(name, one) for one in patterns)


def _fits(name: str, pattern: str) -> bool:
    signs = {"*": ".*", "?": "."}  # brackets are those of a port
    return bool(re.fullmatch("".join(signs.get(c) or re.escape(c) for c in pattern), name))


def refuse_revoked(hostname: str, key: PKey, files: Iterable[str]) -> None:
    """Refuse a host's key that a file has revoked, also where another line still has it as known.

    ``hostname``: as it stands in known hosts, with a port that is not 22. Raises RevokedHostKey.
    """
    for name in _names(hostname):
        for file, number, entry in entries((*files, GLOBAL), name, marker=REVOKED):
            if entry.key == key:
                raise RevokedHostKey(key, file, number)


def append(file: Path, name: str, key: PKey) -> None:
    """Write a host's key at the end of a file of known hosts, which is made where there is none."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = HostKeyEntry([name], key).to_line() or ""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        ends = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        os.write(descriptor, (line if ends else f"\n{line}").encode())
    finally:
        os.close(descriptor)


def shown(key: PKey) -> str:
    """Return a key's kind and fingerprint, as ssh-keygen shows them."""
    return f"{key.algorithm_name} {key.fingerprint}"
