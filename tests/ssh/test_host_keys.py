"""Host keys against real sshd: unknown ones are refused or taken on request, another one never."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from .machine import Machine, Person, Sshd


@pytest.fixture(scope="module")
def sshd(machine: Machine) -> Sshd:
    """The node's own."""
    return machine.sshd()


@pytest.fixture(scope="module")
def other(machine: Machine) -> Sshd:
    """Another one, with another key."""
    return machine.sshd()


def site(machine: Machine, person: Person, sshd: Sshd, count: int = 1, **data: Any) -> Path:
    """Write an inventory of nodes at that sshd."""
    keys = {"ssh_hostname": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "nora",
            "ssh_key": str(machine.folder / "key"), **data}  # fmt: skip
    return person.inventory(*((f"gpu-{number}", keys) for number in range(1, count + 1)))


def error(person: Person, target: Path, *words: str) -> str:
    """Run status over it; return the one node's error, and check that no file was changed."""
    there = person.known_hosts.exists()
    before = person.known_hosts.read_bytes() if there else b""
    ended = person.tool("status", target, "--json", *words)
    assert ended.code == 1
    told = ended.nodes["gpu-1"]["error"]
    assert told["code"] == "UNREACHABLE"
    assert "Traceback" not in ended.err
    assert person.known_hosts.exists() == there
    assert (person.known_hosts.read_bytes() if there else b"") == before
    text: str = told["text"]
    return text


def test_an_unknown_one_is_refused_with_what_it_showed(
    machine: Machine, person: Person, sshd: Sshd
) -> None:
    text = error(person, site(machine, person, sshd))
    assert f"Its host key is not known. It shows ED25519 {sshd.fingerprint}" in text
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1 | ssh-keygen -lf -" in text
    assert f"--accept-new, which writes it to {person.known_hosts}" in text


def test_accept_new_takes_it_once_and_says_so(machine: Machine, person: Person, sshd: Sshd) -> None:
    target = site(machine, person, sshd, count=5)
    person.known_hosts.parent.rmdir()  # it is made
    ended = person.tool("status", target, "--accept-new", "--json")
    assert ended.code == 0
    said = (
        f"[127.0.0.1]:{sshd.port}: new host key ED25519 {sshd.fingerprint}, written to "
        f"{person.known_hosts}"
    )
    assert ended.err.count(said) == 1
    assert person.known_hosts.read_text(encoding="utf-8") == sshd.known
    assert person.known_hosts.stat().st_mode & 0o777 == 0o600
    # Known from now on, to us and to ssh.
    ended = person.tool("status", target, "--json")
    assert (ended.code, "new host key" in ended.err) == (0, False)
    known = f"UserKnownHostsFile={person.known_hosts}"
    words = ["-o", "StrictHostKeyChecking=yes", "-o", known, "-i", str(machine.folder / "key")]
    subprocess.run(
        ["ssh", "-F", "none", *words, "-p", str(sshd.port), "nora@127.0.0.1", "true"], check=True
    )


def test_accept_new_keeps_a_file_whose_last_line_has_no_end(
    machine: Machine, person: Person, sshd: Sshd, other: Sshd
) -> None:
    person.known_hosts.write_text(other.known.rstrip("\n"), encoding="utf-8")
    assert person.tool("status", site(machine, person, sshd), "--accept-new").code == 0
    assert person.known_hosts.read_text(encoding="utf-8") == other.known + sshd.known


@pytest.mark.parametrize("words", [(), ("--accept-new",)])
@pytest.mark.parametrize("hashed", [False, True])
def test_another_one_is_always_refused(
    machine: Machine, person: Person, sshd: Sshd, other: Sshd, words: tuple[str, ...], hashed: bool
) -> None:
    person.known_hosts.write_text(
        f"# mine\n[127.0.0.1]:{sshd.port} {other.public}\n", encoding="utf-8"
    )
    if hashed:
        subprocess.run(
            ["ssh-keygen", "-qHf", str(person.known_hosts)], check=True, capture_output=True
        )
    text = error(person, site(machine, person, sshd), *words)
    assert f"another host key than {person.known_hosts} line 2 has" in text
    assert f"ED25519 {sshd.fingerprint}, not ED25519 {other.fingerprint}" in text
    removes = f"ssh-keygen -f {person.known_hosts} -R '[127.0.0.1]:{sshd.port}'"
    assert removes in text
    # The command does what it says.
    subprocess.run(["sh", "-c", removes], check=True, capture_output=True)
    assert other.public not in person.known_hosts.read_text(encoding="utf-8")


def test_a_revoked_one_is_no_new_one(machine: Machine, person: Person, sshd: Sshd) -> None:
    person.known_hosts.write_text(
        f"# mine\n@revoked [127.0.0.1]:{sshd.port} {sshd.public}\n", encoding="utf-8"
    )
    text = error(person, site(machine, person, sshd), "--accept-new")
    assert f"{person.known_hosts} line 2 has revoked" in text
    assert sshd.fingerprint in text


@pytest.mark.parametrize("kept_in", ["one file", "two files"])
def test_a_known_one_that_is_revoked_as_well_is_refused(
    machine: Machine, person: Person, sshd: Sshd, tmp_path: Path, kept_in: str
) -> None:
    revoked = f"@revoked * {sshd.public}\n"
    file = person.known_hosts
    if kept_in == "one file":
        file.write_text(sshd.known + revoked, encoding="utf-8")
    else:
        file.write_text(sshd.known, encoding="utf-8")
        file = tmp_path / "revoked"
        file.write_text(f"\n{revoked}", encoding="utf-8")
        person.configure(f"Host *\n  UserKnownHostsFile {person.known_hosts} {file}\n")
    text = error(person, site(machine, person, sshd))
    assert f"which {file} line 2 has revoked" in text
    assert sshd.fingerprint in text


def test_a_line_with_patterns_is_about_the_hosts_that_fit_it(
    machine: Machine, person: Person, sshd: Sshd
) -> None:
    target = site(machine, person, sshd)
    person.known_hosts.write_text(f"[127.0.?.*]:{sshd.port} {sshd.public}\n", encoding="utf-8")
    assert person.tool("status", target).code == 0
    person.known_hosts.write_text(
        f"*,![127.*]:{sshd.port} {sshd.public}\n[127.0.0.1]:{sshd.port}9 {sshd.public}\n",
        encoding="utf-8",
    )
    assert "Its host key is not known" in error(person, target)


def test_another_kind_of_key_than_the_known_one_is_another_key(
    machine: Machine, person: Person, sshd: Sshd, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-qt", "ecdsa", "-N", "", "-f", str(tmp_path / "k")], check=True)
    public = (tmp_path / "k.pub").read_text(encoding="utf-8")
    person.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public}", encoding="utf-8")
    text = error(person, site(machine, person, sshd), "--accept-new")
    assert f"another host key than {person.known_hosts} line 1 has" in text


def test_one_of_several_keys_of_a_host_is_enough(
    machine: Machine, person: Person, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-qt", "rsa", "-N", "", "-f", str(tmp_path / "k")], check=True)
    sshd = machine.sshd(f"HostKey {tmp_path}/k")
    public = (tmp_path / "k.pub").read_text(encoding="utf-8")
    person.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public}", encoding="utf-8")
    assert person.tool("status", site(machine, person, sshd)).code == 0


def test_what_ssh_s_configuration_says_of_new_keys_holds(
    machine: Machine, person: Person, sshd: Sshd, tmp_path: Path
) -> None:
    person.configure(
        f"Host 127.*\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {tmp_path}/known\n"
    )
    ended = person.tool("status", site(machine, person, sshd))
    assert ended.code == 0
    assert f"written to {tmp_path}/known" in ended.err
    assert (tmp_path / "known").read_text(encoding="utf-8") == sshd.known
    assert not person.known_hosts.exists()


def test_a_key_that_the_configuration_leaves_unchecked_is_named(
    machine: Machine, person: Person, sshd: Sshd, other: Sshd
) -> None:
    person.configure("Host 127.*\n  StrictHostKeyChecking no\n")
    ended = person.tool("status", site(machine, person, sshd))
    assert ended.code == 0
    assert f"host key ED25519 {sshd.fingerprint} is not checked, as configured" in ended.err
    # Another one than the known is refused all the same.
    person.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {other.public}\n", encoding="utf-8")
    assert "another host key than" in error(person, site(machine, person, sshd))
