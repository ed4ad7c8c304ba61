"""The passwords of sudo: asked once per run, or read from where the inventory says they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from getpass import getpass

from pyinfra.api.host import Host

from deploys.secrets import Reader, SecretUnread
from plans.becoming import password_problem
from plans.secrets import Secret
from plans.sources import read_source

KEY = "sudo_password"
"""Key of a host's data that names where its password of sudo is."""

HOW = "'sudo_password': {'env': 'NAME'}, {'file': '~/path'} or {'command': ['program', 'word']}"


class NoPassword(Exception):
    """A password of sudo is not to be had; ``messages`` say why, and never have it."""

    def __init__(self, *messages: str) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


def passwords_of(
    hosts: Sequence[Host], warn: Callable[[str], None], *, ask: bool
) -> dict[str, Secret]:
    """Return the password of sudo by node, of those that have one.

    With ``ask`` it is asked for on the terminal, once, for all nodes; otherwise it is read from
    what the data of each host name. Raises NoPassword with all that is wrong.
    """
    messages = [
        f"{host.name}: '_sudo_password' stands in the inventory: a password does not; write {HOW}"
        for host in hosts
        if host.data.get("_sudo_password")
    ]
    if messages:
        raise NoPassword(*messages)
    if ask:
        password = _asked(len(hosts))
        return {host.name: password for host in hosts}
    reader = Reader(warn)
    found: dict[str, Secret] = {}
    for host in hosts:
        try:
            source = read_source(host.data.get(KEY))
            if source is not None:
                found[host.name] = reader.read_checked(source, password_problem)
        except (ValueError, SecretUnread) as error:
            messages.append(f"{host.name}: {KEY}: {error}")
    if messages:
        raise NoPassword(*messages)
    return found


def _asked(nodes: int) -> Secret:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise NoPassword(
            "--ask-sudo-password: there is no terminal to ask on; name where the password is in "
            f"the data of the hosts: {HOW}"
        ) from None
    where = f"on {nodes} nodes" if nodes != 1 else "on the node"
    # gevent's own handler runs between greenlets, and none runs while a terminal is read.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        text = getpass(f"sudo password {where}: ")
    except EOFError:
        text = ""
    finally:
        signal.signal(signal.SIGINT, before)
    problem = password_problem(text)
    if problem is not None:
        raise NoPassword(f"--ask-sudo-password: what was typed {problem}")
    return Secret(text)
