"""sudo that wants a password: asked once for all nodes, seen by nobody, tried once on a node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .machine import INTERRUPT, PASSWORD, Machine, Person, Sshd

FROM_ENV = {"sudo_password": {"env": "GPU_SUDO"}}


@pytest.fixture(scope="module")
def sshd(machine: Machine) -> Sshd:
    """An sshd whose every session leaves its words in a file that the tests read."""
    return machine.sshd()


@pytest.fixture
def at(machine: Machine, sshd: Sshd, person: Person) -> Any:
    """Makes hosts of the inventory: the user who connects, and more of its data."""
    person.known_hosts.write_text(sshd.known, encoding="utf-8")

    def host(name: str, user: str = "maria", **data: object) -> tuple[str, dict[str, object]]:
        return name, {
            "ssh_hostname": "127.0.0.1",
            "ssh_port": sshd.port,
            "ssh_user": user,
            "ssh_key": str(machine.folder / "key"),
            **data,
        }

    return host


def error_of(document: Any, node: str) -> dict[str, str]:
    """Return the error of a node."""
    (found,) = [one["error"] for one in document["nodes"] if one["node"] == node]
    return {"code": found["code"], "text": found["text"]}


def uids(document: Any) -> dict[str, int]:
    """Return as whom each node was surveyed."""
    return {one["node"]: one["survey"]["host"]["uid"] for one in document["nodes"]}


def test_it_is_asked_once_for_all_nodes_and_shown_nowhere(person: Person, at: Any) -> None:
    site = person.inventory(at("a"), at("b"), at("c", "nora"))
    events = person.home / "events"
    ended, shown = person.tool_on_terminal(
        "survey", site, "-K", "--json", "-vvv", "--events", events, types=PASSWORD + "\n"
    )
    assert ended.code == 0
    assert uids(ended.json) == {"a": 0, "b": 0, "c": 0}
    assert shown.count("sudo password on 3 nodes: ") == 1
    for text in (ended.out, ended.err, shown, events.read_text(encoding="utf-8")):
        assert PASSWORD not in text
        assert json.dumps(PASSWORD)[1:-1] not in text
        assert "battery" not in text


def test_it_is_in_no_list_of_processes_environment_log_or_file(
    machine: Machine, person: Person, at: Any
) -> None:
    # A sudo of theirs would be no sudo: the program that runs as root looks around instead.
    seen = machine.folder / "seen"
    machine.inside(
        "sh", "-c",
        f"printf '%s\\n' '#!/bin/sh' 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null "
        f"| tr \"\\\\000\" \"\\\\n\" | grep -av \"^GPU_SUDO=\" >> {seen}; exit 0' > /usr/local/bin/nvidia-smi; "
        "chmod 755 /usr/local/bin/nvidia-smi",
    )  # fmt: skip
    try:
        person.environment["GPU_SUDO"] = PASSWORD
        ended = person.tool("survey", person.inventory(at("a", **FROM_ENV)), "--sudo", "--json")
    finally:
        machine.inside("rm", "/usr/local/bin/nvidia-smi")
    assert ended.code == 0
    assert uids(ended.json) == {"a": 0}
    looked = seen.read_text(encoding="utf-8", errors="replace")
    assert "sglang-survey" in looked, "it did look"
    assert "battery" not in looked
    assert "battery" not in machine.sudo_log()
    assert "battery" not in machine.inside("sh", "-c", "cat /var/log/* 2>/dev/null; true")
    # Where pyinfra has its own program that answers sudo.
    left = "find /tmp -maxdepth 1 -type f -name 'pyinfra*' -exec grep -lI battery {} +; true"
    found = machine.inside("sh", "-c", left)
    assert found == ""


@pytest.mark.parametrize("way", ["env", "file", "command"])
def test_it_is_read_from_where_the_inventory_says(
    person: Person, at: Any, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n", encoding="utf-8")
    file.chmod(0o600)
    person.environment["GPU_SUDO"] = PASSWORD
    source = {"env": "GPU_SUDO", "file": str(file), "command": ["cat", str(file)]}[way]
    site = person.inventory(at("a", sudo_password={way: source}, _sudo=True))
    ended = person.tool("status", site, "--json")
    assert ended.code == 0
    assert ended.nodes["a"]["services"] == []


def test_a_wrong_one_is_tried_once_and_told_in_one_sentence(
    machine: Machine, person: Person, at: Any
) -> None:
    before = machine.sudo_log()
    ended, _ = person.tool_on_terminal(
        "status", person.inventory(at("a")), "-K", "--json", types="wrong\n"
    )
    assert ended.code == 1
    told = error_of(ended.json, "a")
    assert told["code"] == "NEED_ROOT"
    assert (
        "does not take this password of maria (sudo: 1 incorrect password attempt)" in told["text"]
    )
    assert "--ask-sudo-password" in told["text"]
    assert "Traceback" not in ended.err
    attempts = re.findall(r"(\d+) incorrect password attempt", machine.sudo_log()[len(before) :])
    assert attempts == ["1"]


def test_two_nodes_that_refuse_it_keep_it_from_the_others(
    machine: Machine, person: Person, at: Any
) -> None:
    before = machine.sudo_log()
    site = person.inventory(*(at(name) for name in "abcdef"))
    ended, _ = person.tool_on_terminal("status", site, "-K", "--json", types="wrong\n")
    assert ended.code == 1
    texts = [one["error"]["text"] for one in ended.json["nodes"]]
    assert sum("It was tried once" in text for text in texts) == 2
    assert sum("was not tried on this node" in text for text in texts) == 4
    attempts = re.findall(r"(\d+) incorrect password attempt", machine.sudo_log()[len(before) :])
    assert attempts == ["1", "1"]


def test_one_node_that_refuses_it_stops_no_other(person: Person, at: Any) -> None:
    site = person.inventory(at("a", "olga"), at("b"), at("c", "nora"), at("d"))
    ended, _ = person.tool_on_terminal("survey", site, "-K", "--json", types=PASSWORD + "\n")
    assert ended.code == 1
    told = error_of(ended.json, "a")
    assert "olga may not become root by sudo on this node" in told["text"]
    assert "olga is not in the sudoers file" in told["text"]
    document = {"nodes": [one for one in ended.json["nodes"] if "survey" in one]}
    assert uids(document) == {"b": 0, "c": 0, "d": 0}


def test_where_sudo_needs_none_it_is_not_sent(machine: Machine, person: Person, at: Any) -> None:
    before = machine.sudo_log()
    site = person.inventory(at("a", "nora"))
    ended, _ = person.tool_on_terminal("survey", site, "-K", "--json", types="whatever\n")
    assert ended.code == 0
    assert uids(ended.json) == {"a": 0}
    assert "incorrect" not in machine.sudo_log()[len(before) :]


def test_where_none_was_given_the_sentence_names_the_options(person: Person, at: Any) -> None:
    ended = person.tool("status", person.inventory(at("a")), "--sudo", "--json")
    assert ended.code == 1
    told = error_of(ended.json, "a")
    assert told["code"] == "NEED_ROOT"
    assert "sudo asks maria for a password on this node" in told["text"]
    assert "--ask-sudo-password" in told["text"]
    assert "'sudo_password'" in told["text"]


def test_with_no_terminal_to_ask_on_nothing_is_begun(
    machine: Machine, person: Person, at: Any
) -> None:
    before = machine.sudo_log()
    ended = person.tool_without_terminal("status", person.inventory(at("a")), "-K", "--json")
    assert ended.code == 2
    assert "there is no terminal to ask on" in ended.json["error"]["text"]
    assert machine.sudo_log() == before


def test_an_interrupt_at_the_question_ends_it(person: Person, at: Any) -> None:
    ended, _ = person.tool_on_terminal(
        "status", person.inventory(at("a")), "-K", "--json", types=INTERRUPT
    )
    assert ended.code == 130
    assert "Traceback" not in ended.err


def test_a_source_that_gives_nothing_and_a_password_in_the_inventory_are_told(
    person: Person, at: Any
) -> None:
    site = person.inventory(
        at("a", **FROM_ENV), at("b", sudo_password="battery"), at("c", sudo_password={"env": "A-B"})
    )
    ended = person.tool("status", site, "--sudo", "--json")
    assert ended.code == 2
    text = ended.json["error"]["text"]
    assert "a: sudo_password: the variable GPU_SUDO is not set on the controller" in text
    assert "b: sudo_password: is not a mapping: a secret does not stand in an inventory" in text
    assert "c: sudo_password: env is no name of a variable" in text
    ended = person.tool("status", person.inventory(at("a", _sudo_password="battery")), "--json")
    assert ended.code == 2
    assert "'_sudo_password' stands in the inventory" in ended.json["error"]["text"]
    assert "battery" not in ended.out + ended.err
