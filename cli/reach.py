"""How a node is reached: unknown host keys are refused, and why a node could not be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paramiko import SSHConfig
from pyinfra.api.host import Host

CHECKING = "ssh_strict_host_key_checking"
"""Key of a host's data that says what becomes of a host key that is not known."""


def refuse_unknown_keys(host: Host) -> None:
    """Let a host key that is not known end the connection, unless somebody said otherwise.

    pyinfra would ask on the terminal, for many nodes at once and in the midst of the output. What
    the host's data or ~/.ssh/config say of StrictHostKeyChecking holds.
    """
    if host.data.get(CHECKING) is None and not _configured(host):
        setattr(host.data, CHECKING, "yes")


def _configured(host: Host) -> bool:
    path = Path(str(host.data.get("ssh_config_file") or "~/.ssh/config")).expanduser()
    try:
        found = SSHConfig.from_path(str(path)).lookup(_address(host))
    except Exception:  # no such file, or one that paramiko cannot read: pyinfra tells of it
        return False
    return "stricthostkeychecking" in found


def why_unreachable(host: Host, error: str) -> str:
    """Return the sentence for a node that could not be reached, with the command that helps."""
    address, port = _address(host), host.data.get("ssh_port") or 22
    user = host.data.get("ssh_user")
    place = address if int(port) == 22 else f"[{address}]:{port}"
    scan = f"ssh-keyscan {'' if int(port) == 22 else f'-p {port} '}{address} | ssh-keygen -lf -"
    login = " ".join(
        [
            "ssh -v",
            *([f"-p {port}"] if int(port) != 22 else []),
            f"{user}@{address}" if user else address,
        ]
    )
    text = f"could not be reached: {error.rstrip('.')}."
    if "does not match" in error:
        return (
            f"{text} It shows another host key than known_hosts has: compare it with the node's own "
            f"({scan}, and on its console ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub); only if "
            f"the node was installed anew: ssh-keygen -R '{place}'"
        )
    if "No host key for" in error:
        return (
            f"{text} Its host key is not known: compare it with the node's own ({scan}), then take "
            f"it with: {login} true"
        )
    if error.startswith("Authentication error"):
        return f"{text} The node does not take this user with this key: {login} true"
    if error.startswith("Could not resolve"):
        return f"{text} No address belongs to that name: getent hosts {address}"
    return (
        f"{text} Nothing answers as SSH at {address} port {port}: is the node up, and may this "
        f"machine reach that port? {login} true"
    )


def _address(host: Host) -> str:
    given: Any = host.data.get("ssh_hostname")
    return str(given or host.name.removeprefix("@ssh/"))
