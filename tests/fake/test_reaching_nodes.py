"""Nodes that are reached by SSH: a host key that is another, or not known, ends it there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tests.fake.command import CHAT, Ended, run

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


def test_a_host_key_that_changed_is_told_with_how_to_compare_it(tmp_path: Path, port: int) -> None:
    other = paramiko.ECDSAKey.generate()
    _, text = error(tmp_path, known_as(other, port), port)
    assert "another host key than known_hosts has" in text
    assert f"ssh-keyscan -p {port} 127.0.0.1 | ssh-keygen -lf -" in text
    assert f"ssh-keygen -R '[127.0.0.1]:{port}'" in text


def test_a_host_key_that_is_not_known_is_not_asked_about(tmp_path: Path, port: int) -> None:
    ended, text = error(tmp_path, "", port)
    assert "Its host key is not known" in text
    assert f"ssh -v -p {port} maria@127.0.0.1 true" in text
    assert "do you want to continue" not in ended.out + ended.err


def test_a_user_whose_key_is_not_taken_is_told_apart(tmp_path: Path, port: int) -> None:
    _, text = error(tmp_path, known_as(HOST_KEY, port), port)
    assert "does not take this user with this key" in text


def test_a_port_that_nobody_listens_on_is_told_with_its_number(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    _, text = error(tmp_path, "", closed)
    assert f"Nothing answers as SSH at 127.0.0.1 port {closed}" in text
