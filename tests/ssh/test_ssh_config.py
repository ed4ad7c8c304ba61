"""Nodes behind what operators write into ~/.ssh/config: names, ports, users, keys, agents, jumps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .machine import Machine, Person, Sshd

INSIDE = "gpu-inside.test"
"""A name that only the machine's own /etc/hosts knows: it is reached by way of it alone."""


@pytest.fixture(scope="module")
def node(machine: Machine) -> Sshd:
    """The sshd of the node."""
    machine.inside("sh", "-c", f"echo '127.0.0.1 {INSIDE} jump-inside.test' >> /etc/hosts")
    return machine.sshd()


@pytest.fixture(scope="module")
def jump(machine: Machine) -> Sshd:
    """The sshd of a jump host."""
    return machine.sshd()


def surveyed_as(person: Person, target: object, *words: str) -> str:
    """Survey the one node; return the user that it was surveyed as."""
    ended = person.tool("survey", target, "--json", *words)
    assert ended.code == 0
    (one,) = ended.json["nodes"]
    user: str = one["survey"]["host"]["user"]
    return user


def test_name_port_user_and_key_come_from_the_configuration(
    machine: Machine, person: Person, node: Sshd
) -> None:
    person.known_hosts.write_text(node.known, encoding="utf-8")
    (person.home / ".ssh/more").write_text(
        f"Host gpu-*\n  Port {node.port}\n  IdentityFile {machine.folder}/key\n", encoding="utf-8"
    )
    person.configure("Include more\nHost gpu-1\n  HostName 127.0.0.1\n  User nora\n")
    assert surveyed_as(person, "gpu-1") == "nora"
    # What the inventory says comes first.
    assert surveyed_as(person, person.inventory(("gpu-1", {"ssh_user": "maria"}))) == "maria"


@pytest.fixture
def agent(machine: Machine, tmp_path: Path) -> Iterator[str]:
    """The socket of an agent that has the key."""
    socket = f"{machine.folder}/agent-{os.getpid()}"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    for _ in range(100):
        if os.path.exists(socket):
            break
        subprocess.run(["sleep", "0.05"], check=True)
    subprocess.run(
        ["ssh-add", "-q", str(machine.folder / "key")],
        env={**os.environ, "SSH_AUTH_SOCK": socket},
        check=True,
    )
    yield socket
    process.kill()
    process.wait()
    Path(socket).unlink(missing_ok=True)


@pytest.mark.parametrize("way", ["SSH_AUTH_SOCK", "IdentityAgent"])
def test_the_key_of_an_agent_is_used(
    machine: Machine, person: Person, node: Sshd, agent: str, way: str
) -> None:
    person.known_hosts.write_text(node.known, encoding="utf-8")
    host = f"Host gpu-1\n  HostName 127.0.0.1\n  Port {node.port}\n  User nora\n"
    if way == "IdentityAgent":
        person.configure(f"{host}  IdentityAgent {agent}\n")
    else:
        person.configure(host)
        person.environment["SSH_AUTH_SOCK"] = agent
    assert surveyed_as(person, "gpu-1") == "nora"


def test_a_key_with_a_passphrase_is_told_with_how_to_use_it(
    machine: Machine, person: Person, node: Sshd, tmp_path: Path
) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    person.known_hosts.write_text(node.known, encoding="utf-8")
    site = person.inventory(
        ("gpu-1", {"ssh_hostname": "127.0.0.1", "ssh_port": node.port, "ssh_key": str(key)})
    )
    ended = person.tool("status", site, "--json")
    assert ended.code == 1
    text = ended.nodes["gpu-1"]["error"]["text"]
    assert f"the private key {key} has a passphrase" in text
    assert f"ssh-add {key}" in text


def behind(machine: Machine, node: Sshd, way: str) -> str:
    """Return the configuration of a node that is reached by way of others."""
    return (
        f"Host gpu-1\n  HostName {INSIDE}\n  Port {node.port}\n  ProxyJump {way}\n"
        f"Host *\n  User nora\n  IdentityFile {machine.folder}/key\n"
    )


def known(*pairs: tuple[str, Sshd]) -> str:
    """Return lines of known_hosts: names with the keys of these."""
    return "".join(f"[{name}]:{one.port} {one.public}\n" for name, one in pairs)


def test_a_node_behind_a_jump_host_is_reached(
    machine: Machine, person: Person, node: Sshd, jump: Sshd
) -> None:
    person.known_hosts.write_text(known((INSIDE, node), ("127.0.0.1", jump)), encoding="utf-8")
    person.configure(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        + behind(machine, node, "bastion")
    )
    assert surveyed_as(person, "gpu-1") == "nora"


@pytest.mark.parametrize("nested", [False, True])
def test_a_node_behind_two_jump_hosts_is_reached(
    machine: Machine, person: Person, node: Sshd, jump: Sshd, nested: bool
) -> None:
    second = machine.sshd()
    person.known_hosts.write_text(
        known((INSIDE, node), ("127.0.0.1", jump), ("jump-inside.test", second)), encoding="utf-8"
    )
    person.configure(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        f"Host inner\n  HostName jump-inside.test\n  Port {second.port}\n"
        + ("  ProxyJump bastion\n" if nested else "")
        + behind(machine, node, "inner" if nested else "bastion,inner")
    )
    assert surveyed_as(person, "gpu-1") == "nora"


def test_the_key_of_a_jump_host_is_told_apart(
    machine: Machine, person: Person, node: Sshd, jump: Sshd
) -> None:
    person.configure(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        + behind(machine, node, "bastion")
    )
    place = f"[127.0.0.1]:{jump.port}"
    ended = person.tool("status", "gpu-1", "--json")
    text = ended.nodes["gpu-1"]["error"]["text"]
    assert f"The host key of {place}, on the way to it, is not known" in text
    assert jump.fingerprint in text
    person.known_hosts.write_text(f"{place} {node.public}\n", encoding="utf-8")
    ended = person.tool("status", "gpu-1", "--json")
    text = ended.nodes["gpu-1"]["error"]["text"]
    assert f"{place}, on the way to it, shows another host key" in text
    assert f"ssh-keygen -f {person.known_hosts} -R '{place}'" in text
    person.known_hosts.unlink()
    ended = person.tool("status", "gpu-1", "--json", "--accept-new")
    assert ended.code == 0
    assert person.known_hosts.read_text(encoding="utf-8") == known(
        ("127.0.0.1", jump), (INSIDE, node)
    )
