"""Why a node could not be reached, in a sentence with the command that helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyinfra.connectors.ssh_util
from paramiko.ssh_exception import BadHostKeyException
from pyinfra.api.host import Host
from pyinfra.connectors.sshuserclient.client import get_ssh_config

from cli.bounds import TookTooLong
from cli.hostkeys import GLOBAL, UnknownHostKey, entries, shown

CHECKING = "ssh_strict_host_key_checking"
"""Key of a host's data that says what becomes of a host key that is not known."""

ON_CONSOLE = "on its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"


class Encrypted(Exception):
    """A private key has a passphrase, and nobody is asked for it."""


def ask_for_no_passphrase() -> None:
    """Let a private key with a passphrase end the connection: pyinfra would ask for every node."""

    def getpass(prompt: str = "", stream: Any = None) -> str:
        raise Encrypted(prompt)

    pyinfra.connectors.ssh_util.getpass = getpass


@dataclass(frozen=True)
class Way:
    """Where a node is, as pyinfra finds it: the host's data before ~/.ssh/config."""

    address: str
    port: int
    user: str | None
    jumps: str | None
    known_hosts: tuple[str, ...]
    ssh: str
    """The command of ssh that goes the same way."""

    @property
    def name(self) -> str:
        """The node's name in known_hosts."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    @property
    def scan(self) -> str:
        """The command that prints the node's host keys."""
        port = "" if self.port == 22 else f"-p {self.port} "
        return f"ssh-keyscan {port}{self.address}"


def take_no_unknown_keys(host: Host) -> None:
    """Let ~/.ssh/config say what becomes of unknown host keys where the host's data do not.

    pyinfra would take them, whatever that file says.
    """
    if host.data.get(CHECKING) is None:
        setattr(host.data, CHECKING, _configured(host).get("stricthostkeychecking", "ask"))


def _name(host: Host) -> str:
    return str(host.data.get("ssh_hostname") or host.name.removeprefix("@ssh/"))


def _configured(host: Host) -> dict[str, Any]:
    """Return what ssh_config says of a host; nothing where it cannot be read: the connection meets
    that too, and tells of it."""
    try:
        found = get_ssh_config(host.data.get("ssh_config_file"))
        return dict(found.lookup(_name(host))) if found else {}
    except Exception:
        return {}


def way_to(host: Host) -> Way:
    """Return how a node is reached. A configuration that cannot be read counts as empty."""
    data, name, config = host.data, _name(host), _configured(host)
    file = data.get("ssh_config_file")
    port = int(data.get("ssh_port") or config.get("port") or 22)
    user = data.get("ssh_user") or config.get("user")
    key = data.get("ssh_key")
    files = str(data.get("ssh_known_hosts_file") or config.get("userknownhostsfile") or "")
    words = [
        "ssh -v",
        *([f"-F {file}"] if file else []),
        *([f"-i {key}"] if key else []),
        *([f"-p {port}"] if port != 22 and data.get("ssh_port") else []),
        f"{data.get('ssh_user')}@{name}" if data.get("ssh_user") else name,
        "true",
    ]
    return Way(
        address=config.get("hostname", name),
        port=port,
        user=str(user) if user else None,
        jumps=config.get("proxyjump"),
        known_hosts=tuple(
            str(Path(one).expanduser()) for one in (files or "~/.ssh/known_hosts").split()
        ),
        ssh=" ".join(words),
    )


def why_unreachable(host: Host, error: BaseException) -> str:
    """Return the sentence for a node that could not be reached, with the command that helps."""
    way = way_to(host)
    if isinstance(error, TookTooLong):
        return (
            f"{error}: it was still not connected to {way.address} port {way.port}. More is told "
            f"by: {way.ssh}"
        )
    for cause in _causes(error):
        if isinstance(cause, UnknownHostKey):
            return _unknown(way, cause)
        if isinstance(cause, BadHostKeyException):
            return _changed(way, cause)
        if isinstance(cause, Encrypted):
            key = host.data.get("ssh_key")
            return (
                f"could not be reached: the private key {key} has a passphrase, and nobody is asked "
                f"for it: put it into the agent (ssh-add {key}) and leave 'ssh_key' out of the data "
                "of the host"
            )
    said = (str(error) or type(error).__name__).rstrip(".")
    text = f"could not be reached: {said}."
    if said.startswith("Authentication error"):
        return f"{text} The node does not take this user with this key: {way.ssh}"
    if said.startswith("Could not resolve"):
        return f"{text} No address belongs to that name: getent hosts {way.address}"
    if said.startswith(("Could not connect", "EOF error", "SSH error (Error reading SSH protocol")):
        return (
            f"{text} Nothing answers as SSH at {way.address} port {way.port}: is the node up, and "
            f"may this machine reach that port? {way.ssh}"
        )
    return f"{text} More is told by: {way.ssh}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give an error and what it came from, the last first."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _unknown(way: Way, error: UnknownHostKey) -> str:
    own = error.name in (way.name, way.name.lower())
    whose = "Its host key" if own else f"The host key of {error.name}, on the way to it,"
    scan = f", or from here: {way.scan} | ssh-keygen -lf -" if own and not way.jumps else ""
    return (
        f"could not be reached: {whose} is not known. It shows {shown(error.key)}: compare that "
        f"with its own ({ON_CONSOLE}{scan}), then take it with --accept-new, which writes it to "
        f"{error.file}"
    )


def _changed(way: Way, error: BadHostKeyException) -> str:
    files = (*way.known_hosts, str(Path("~/.ssh/known_hosts").expanduser()), GLOBAL)
    found = [
        (file, number, name)
        for name in dict.fromkeys((way.name, error.hostname, *_names_with(files, error)))
        for file, number, entry in entries(files, name)
        if entry.key == error.expected_key
    ]
    file, number, name = found[0] if found else (files[0], 0, way.name)
    line = f"{file} line {number}" if number else file
    own = name in (way.name, way.name.lower())
    who = "it shows" if own else f"{name}, on the way to it, shows"
    scan = f", or from here: {way.scan} | ssh-keygen -lf -" if own and not way.jumps else ""
    return (
        f"could not be reached: {who} another host key than {line} has: {shown(error.key)}, not "
        f"{shown(error.expected_key)}. Somebody may stand in between. Compare it with its own "
        f"({ON_CONSOLE}{scan}); only if it was installed anew: ssh-keygen -f {file} -R '{name}'"
    )


def _names_with(files: tuple[str, ...], error: BadHostKeyException) -> Iterator[str]:
    """Give the names, with ports, under which files have the key that was expected of a host."""
    for file in files:
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) >= 3 and words[2] == error.expected_key.get_base64():
                yield from (one for one in words[0].split(",") if error.hostname in one)
