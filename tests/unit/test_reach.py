"""A node that cannot be reached: why, and the command that tells more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Inventory
from pyinfra.api.host import Host

from cli.reach import CHECKING, refuse_unknown_keys, why_unreachable


def host(name: str = "gpu-1", **data: Any) -> Host:
    """Return a host of an inventory with these data."""
    made: Host = Inventory(([(name, data)], {})).get_host(name)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("SSH host key error (Host key for 10.0.0.5 does not match.)", "ssh-keygen -R '10.0.0.5'"),
        ("SSH error (StrictPolicy: No host key for 10.0.0.5 found)", "ssh -v maria@10.0.0.5 true"),
        ("Authentication error (username=maria)", "ssh -v maria@10.0.0.5 true"),
        ("Could not resolve hostname (Name or service not known)", "getent hosts 10.0.0.5"),
        ("Could not connect (timed out)", "port 22"),
        ("EOF error ()", "Nothing answers as SSH"),
    ],
)
def test_why_a_node_cannot_be_reached_is_told_with_a_command(error: str, says: str) -> None:
    told = why_unreachable(host(ssh_hostname="10.0.0.5", ssh_user="maria"), error)
    assert error in told
    assert says in told


def test_another_port_is_in_the_commands() -> None:
    at = host("10.0.0.5", ssh_port=2222)
    changed = why_unreachable(at, "SSH host key error (Host key for 10.0.0.5 does not match.)")
    assert "ssh-keyscan -p 2222 10.0.0.5" in changed
    assert "ssh-keygen -R '[10.0.0.5]:2222'" in changed
    assert "ssh -v -p 2222 10.0.0.5 true" in why_unreachable(at, "Could not connect (timed out)")


def test_a_host_key_that_is_not_known_is_refused_unless_somebody_said_otherwise(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab-*\n  StrictHostKeyChecking accept-new\n", encoding="utf-8")
    for name, data, wanted in (
        ("gpu-1", {}, "yes"),
        ("gpu-1", {CHECKING: "accept-new"}, "accept-new"),
        ("lab-1", {}, None),  # what ~/.ssh/config says holds: pyinfra reads it
    ):
        one = host(name, ssh_config_file=str(config), **data)
        refuse_unknown_keys(one)
        assert one.data.get(CHECKING) == wanted
    gone = host(ssh_config_file=str(tmp_path / "none"))
    refuse_unknown_keys(gone)
    assert gone.data.get(CHECKING) == "yes"
