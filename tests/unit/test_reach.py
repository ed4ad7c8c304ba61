"""A node that cannot be reached: why, and the command that tells more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Inventory
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host

from cli.reach import CHECKING, take_no_unknown_keys, way_to, why_unreachable


def host(name: str = "gpu-1", **data: Any) -> Host:
    """Return a host of an inventory with these data."""
    made: Host = Inventory(([(name, data)], {})).get_host(name)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("Authentication error (username=maria)", "ssh -v maria@10.0.0.5 true"),
        ("Could not resolve hostname (Name or service not known)", "getent hosts 10.0.0.5"),
        ("Could not connect (timed out)", "Nothing answers as SSH at 10.0.0.5 port 22"),
        ("EOF error ()", "Nothing answers as SSH"),
        ("Unparsable line Hots gpu-1", "More is told by: ssh -v maria@10.0.0.5 true"),
    ],
)
def test_why_a_node_cannot_be_reached_is_told_with_a_command(error: str, says: str) -> None:
    told = why_unreachable(host(ssh_hostname="10.0.0.5", ssh_user="maria"), ConnectError(error))
    assert error in told
    assert says in told


def test_another_port_key_and_configuration_are_in_the_commands(tmp_path: Path) -> None:
    at = host("10.0.0.5", ssh_port=2222, ssh_key="~/.ssh/gpu", ssh_config_file=str(tmp_path / "c"))
    words = f"ssh -v -F {tmp_path}/c -i ~/.ssh/gpu -p 2222 10.0.0.5 true"
    assert words in why_unreachable(at, ConnectError("Could not connect (timed out)"))


def test_where_a_node_is_comes_from_the_data_before_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "Host gpu-1\n  HostName 10.0.0.9\n  Port 2200\n  User root\n  ProxyJump bastion\n"
        "  UserKnownHostsFile /k/one /k/two\n",
        encoding="utf-8",
    )
    way = way_to(host(ssh_config_file=str(file), ssh_user="maria"))
    assert (way.address, way.port, way.user, way.jumps) == ("10.0.0.9", 2200, "maria", "bastion")
    assert (way.name, way.known_hosts) == ("[10.0.0.9]:2200", ("/k/one", "/k/two"))
    assert way.scan == "ssh-keyscan -p 2200 10.0.0.9"
    # ssh reads the same file: what stands there is not said again.
    assert way.ssh == f"ssh -v -F {file} maria@gpu-1 true"


def test_a_host_key_that_is_not_known_is_refused_unless_somebody_said_otherwise(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab-*\n  StrictHostKeyChecking accept-new\n", encoding="utf-8")
    for name, data, wanted in (
        ("gpu-1", {}, "ask"),
        ("gpu-1", {CHECKING: "accept-new"}, "accept-new"),
        ("lab-1", {}, "accept-new"),
        ("lab-1", {CHECKING: "yes"}, "yes"),
    ):
        one = host(name, ssh_config_file=str(config), **data)
        take_no_unknown_keys(one)
        assert one.data.get(CHECKING) == wanted
    gone = host(ssh_config_file=str(tmp_path / "none"))
    take_no_unknown_keys(gone)
    assert gone.data.get(CHECKING) == "ask"
