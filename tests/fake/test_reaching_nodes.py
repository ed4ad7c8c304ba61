"""Nodes that are reached by SSH: a host key that is another, or not known, ends it there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tests.fake.command import CHAT, ROOT, Ended, fake, recording, run

USER_KEY = paramiko.RSAKey.generate(2048)
HOST_KEY = paramiko.ECDSAKey.generate()


class Nobody(paramiko.ServerInterface):
    """Takes no key of anybody: what is tried here ends before a command."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a real SSH server on this machine, which lets nobody in."""
    listener = socket.create_server(("127.0.0.1", 0))
    served: list[paramiko.Transport] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(HOST_KEY)
            try:
                transport.start_server(server=Nobody())
            except (paramiko.SSHException, EOFError):
                continue
            served.append(transport)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()
    for transport in served:
        transport.close()


def error(folder: Path, known: str, port: int, command: str = "plan") -> tuple[Ended, str]:
    """Run a command over a node at that port; return how it ended and the node's error."""
    (folder / "known").write_text(known, encoding="utf-8")
    USER_KEY.write_private_key_file(str(folder / "key"))
    keys = {
        "ssh_hostname": "127.0.0.1",
        "ssh_port": port,
        "ssh_user": "maria",
        "ssh_key": str(folder / "key"),
        "ssh_known_hosts_file": str(folder / "known"),
        "ssh_config_file": str(folder / "config"),
    }
    (folder / "config").write_text("", encoding="utf-8")
    data: dict[str, Any] = {"sglang": {"services": [CHAT]}}
    site = folder / "site.py"
    site.write_text(f"nodes = ({[('gpu-1', keys)]!r}, {data!r})\n", encoding="utf-8")
    ended = run(command, site, "--json")
    told = ended.nodes["gpu-1"]["error"]
    assert ended.code == 1
    assert told["code"] == "UNREACHABLE"
    assert (folder / "known").read_text(encoding="utf-8") == known, "nothing is taken or removed"
    return ended, told["text"]


def known_as(key: paramiko.PKey, port: int) -> str:
    """Return the line of known_hosts that gives the server this key."""
    return f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"


def test_a_user_whose_key_is_not_taken_is_told_apart(tmp_path: Path, port: int) -> None:
    _, text = error(tmp_path, known_as(HOST_KEY, port), port)
    assert "does not take this user with this key" in text


def test_a_port_that_nobody_listens_on_is_told_with_its_number(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    _, text = error(tmp_path, "", closed)
    assert f"Nothing answers as SSH at 127.0.0.1 port {closed}" in text


def test_a_key_of_the_wrong_type_is_told_with_its_host(tmp_path: Path) -> None:
    site = tmp_path / "site.py"
    site.write_text("nodes = ['gpu-1', ('gpu-2', {'ssh_port': '2222'})]\n", encoding="utf-8")
    ended = run("status", site, "--json")
    assert ended.code == 2
    assert "`ssh_port`" in ended.json["error"]["text"]
    assert "gpu-2 ('2222')" in ended.json["error"]["text"]
    assert "Traceback" not in ended.err


SUDO = """#!/bin/sh
echo 'sudo: a password is required' >&2
exit 1
"""
"""What sudo says and does where it needs a password and has no terminal."""


@pytest.mark.parametrize("command", ["plan", "apply", "status"])
def test_sudo_that_wants_a_password_with_nobody_there_is_told_in_a_sentence(
    tmp_path: Path, command: str
) -> None:
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text(SUDO, encoding="utf-8")
    sudo.chmod(0o755)
    site = tmp_path / "site.py"
    data: dict[str, Any] = {"sglang": {"services": [CHAT]}}
    site.write_text(f"nodes = (['@local'], {data!r})\n", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "cli", command, str(site), "--sudo", "--json"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{sudo.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,  # without a terminal, also where these tests have one
        check=False,
    )
    assert ended.returncode == 1
    (node,) = json.loads(ended.stdout)["nodes"]
    assert node["error"]["code"] == "NEED_ROOT"
    assert "sudo asks USER for a password on this node" in node["error"]["text"]
    assert "NOPASSWD" in node["error"]["text"]
    for word in ("EOFError", "GetPassWarning", "sudo password:", "Traceback"):
        assert word not in ended.stdout + ended.stderr


def test_a_port_that_takes_connections_and_never_speaks_holds_up_nobody_beyond_its_limit(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=5) as silent:
        port = silent.getsockname()[1]
        keys = {"ssh_hostname": "127.0.0.1", "ssh_port": port, "ssh_config_file": "/dev/null"}
        hosts = [("gpu-1", keys), fake("a", recording("dgx-spark"))]
        site = tmp_path / "site.py"
        site.write_text(f"nodes = {hosts!r}\n", encoding="utf-8")
        began = time.monotonic()
        ended = run("survey", site, "--json", "--node-limit", 2)
        took = time.monotonic() - began
    assert ended.nodes["gpu-1"]["error"] == {
        "code": "NODE_LIMIT",
        "text": f"given up after 2 s (--node-limit): it was still not connected to 127.0.0.1 port "
        f"{port}. More is told by: ssh -v -F /dev/null -p {port} 127.0.0.1 true",
    }
    assert ended.nodes["@fake/a"]["survey"]["schema"] == 1
    assert ended.code == 1
    assert took < 12, "its banner alone is waited for 15 s where no limit is given"
