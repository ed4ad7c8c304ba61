"""pyinfra's SSH client with what it lacks of ssh_config's jumps, and of RSA and revoked host keys.

Each of these was seen against sshd with pyinfra 3.10 and paramiko 4.0; tests/ssh tries them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyinfra.connectors.ssh
import pyinfra.connectors.sshuserclient.client as client
from paramiko import PKey, Transport
from typing_extensions import override

from cli.hostkeys import refuse_revoked

RSA = ("rsa-sha2-512", "rsa-sha2-256")


class _Transport(Transport):
    """Asks a host whose RSA key is known for that key, by the names that servers still take.

    ``check`` is called with the host's key before anything is sent that proves who we are.
    """

    def __init__(self, sock: Any, *, check: Callable[[PKey], None], **more: Any) -> None:
        super().__init__(sock, **more)
        self._check = check

    @override
    def start_client(self, event: Any = None, timeout: float | None = None) -> None:
        """Begin; where "ssh-rsa" comes first, what sshd calls the same key today does."""
        options = self.get_security_options()
        if options.key_types[0] == "ssh-rsa":
            rest = [one for one in options.key_types if one not in RSA]
            options.key_types = [*RSA, *rest]
        super().start_client(event=event, timeout=timeout)
        if (key := self.get_remote_server_key()) is not None:
            self._check(key)


class Client(client.SSHClient):
    """One connection, to a node or to a jump host on the way."""

    _file: str | None = None
    _address = ""
    _known_hosts: tuple[str, ...] = ()

    @override
    def connect(self, hostname: str, **kwargs: Any) -> None:  # type: ignore[override]
        """Connect, by way of the jump host's own jump host where it has one."""
        # A jump host comes with no socket and a port that is text: both would overrule its own.
        given = {key: value for key, value in kwargs.items() if (key, value) != ("sock", None)}
        if "port" in given:
            given["port"] = int(given["port"])
        self._file = kwargs.get("_pyinfra_ssh_config_file")
        transport = functools.partial(_Transport, check=self._refuse_revoked)
        super().connect(hostname, transport_factory=transport, **given)  # type: ignore[no-untyped-call]

    @override
    def parse_config(self, *words: Any, **named: Any) -> Any:
        """Read ssh_config, and keep where the host is and which files have its keys."""
        found = super().parse_config(*words, **named)  # type: ignore[no-untyped-call]
        self._address, self._known_hosts = found[0], found[4]
        return found

    def _refuse_revoked(self, key: PKey) -> None:
        port = int(self._ssh_config.get("port", 22))
        name = self._address if port == 22 else f"[{self._address}]:{port}"
        refuse_revoked(name, key, (self._host_keys_filename, *self._known_hosts))

    @override
    def gateway(
        self, hostname: str, host_port: Any, target: str, target_port: Any, timeout: Any = None
    ) -> Any:
        """Open the way to the next host, by the address that ssh_config gives it."""
        config = client.get_ssh_config(self._file)
        found = config.lookup(target).get("hostname", target) if config else target
        ports = int(host_port), int(target_port)
        return super().gateway(hostname, ports[0], found, ports[1], timeout)  # type: ignore[no-untyped-call]


def use() -> None:
    """Let pyinfra connect with it."""
    setattr(pyinfra.connectors.ssh, "SSHClient", Client)  # noqa: B010
    setattr(client, "SSHClient", Client)  # noqa: B010
