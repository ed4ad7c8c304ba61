"""Doors that stand before servers of other nodes: told before a stop and after a verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.context import Run
from locks.lockfile import write_lock
from tests.fake.command import fake, recording, run
from tests.fake.test_exit_codes import GOOD, whole_lock
from tests.fake.test_going_back import NODE, deployed_lines
from tests.fake.test_upgrading import EMPTY, GOES_WELL, SECOND, WORDS

LEAVE, BACK = "take 10.0.0.2:30000 out of the rotation", "let 10.0.0.2:30000 back"
TOLD = {": take ": {"stdout": ["is out"]}, ": let ": {"stdout": ["is back"]}}
STEPS = ["Take chat out of the door on", "Restart chat", "Verify chat", "Let chat back into the"]


def site(folder: Path, *hosts: tuple[str, dict[str, Any]], **responses: Any) -> Path:
    """Write an inventory of node a, and of one with a door before it: ``hosts``, or @fake/d."""
    survey = responses.pop("survey", None) or deployed_lines()
    # What runs there is known by its node's address.
    name, data = fake("a", survey, ssh_hostname="10.0.0.2")
    data["fake_responses"] |= GOES_WELL | responses.pop("a", {})
    at_a = {"services": [SECOND]}
    door = {"port": 8000, "servers": ["chat", "http://10.0.0.2:30000", "http://10.0.0.3:30000"]}
    if not hosts:
        d, there = fake("d", recording(GOOD))
        there["fake_responses"] |= TOLD | responses
        hosts = ((d, there),)
    told = [(one, {**more, "sglang": {"services": [SECOND], "door": door}}) for one, more in hosts]
    path = folder / "site.py"
    path.write_text(
        f"nodes = ({[(name, {**data, 'sglang': at_a}), *told]!r}, {{}})\n", encoding="utf-8"
    )
    write_lock(folder / "sglang.lock", whole_lock())
    return path


def places(err: str, *steps: str) -> list[int]:
    return [err.index(step) for step in steps]


def test_a_restart_of_one_node_tells_the_door_on_another_that_is_not_of_the_run(
    tmp_path: Path,
) -> None:
    ended = run("restart", site(tmp_path), "--limit", NODE, "--json")
    assert ended.code == 0, ended.err
    found = places(ended.err, *STEPS)
    assert found == sorted(found)
    assert "@fake/d] is out" in ended.err
    assert list(ended.nodes) == [NODE]


def test_the_sudo_password_of_the_door_s_node_is_read_also_where_a_run_has_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_SUDO", "of the door's node")
    d = fake("d", [], sudo_password={"env": "DOOR_SUDO"})
    passwords = Run(str(site(tmp_path, d)), False, (NODE,), 0, True).passwords
    assert list(passwords) == ["@fake/d"]


def test_a_server_of_an_address_that_is_no_node_s_is_named_in_the_plan(tmp_path: Path) -> None:
    ended = run("plan", site(tmp_path), "--json")
    told = {name: [one["text"] for one in node["cautions"] if one["code"] == "DOOR_NOT_TOLD"]
            for name, node in ended.nodes.items()}  # fmt: skip
    assert told["@fake/a"] == []
    assert [one.split(",")[0] for one in told["@fake/d"]] == ["the door has 10.0.0.3:30000"]


def test_one_that_the_door_does_not_let_go_is_not_stopped(tmp_path: Path) -> None:
    no = {"success": False, "stdout": ["the door did not take it out within 30 s"]}
    ended = run("restart", site(tmp_path, **{": take ": no}), "--limit", NODE, "--json")
    assert ended.code == 1
    (failure,) = ended.nodes[NODE]["failures"]
    assert failure.startswith(f"chat: {LEAVE} of the door on @fake/d: the door did not take")
    assert "Restart chat" not in ended.err


def test_a_door_that_is_not_reached_keeps_a_server_from_being_stopped(tmp_path: Path) -> None:
    far = ("gpu-d", {"ssh_hostname": "127.0.0.1", "ssh_port": 9, "ssh_user": "nobody"})
    ended = run("restart", site(tmp_path, far), "--limit", NODE, "--json")
    assert ended.code == 1
    (failure,) = ended.nodes[NODE]["failures"]
    assert f"{LEAVE} of the door on gpu-d: that node was not reached (" in failure
    assert "take it out of the data of gpu-d in the inventory" in failure
    assert "Restart chat" not in ended.err


def test_data_of_a_door_that_cannot_be_read_are_named_before_anything_is_stopped(
    tmp_path: Path,
) -> None:
    path = site(tmp_path)
    path.write_text(path.read_text().replace("'port': 8000", "'port': 80"), encoding="utf-8")
    ended = run("restart", path, "--limit", NODE, "--json")
    assert ended.code == 1
    assert "@fake/d has a door, and its data are wrong" in ended.nodes[NODE]["error"]["text"]
    assert "Restart chat" not in ended.err


def test_what_is_stopped_leaves_the_door_and_is_not_let_back(tmp_path: Path) -> None:
    ended = run("stop", site(tmp_path), "--limit", NODE)
    assert ended.code == 0, ended.err
    assert STEPS[0] in ended.err
    assert STEPS[-1] not in ended.err


def test_an_upgrade_that_fails_is_back_in_the_door_s_rotation_once_it_went_back(
    tmp_path: Path,
) -> None:
    cut = [line.replace('"result"', '"upgrade": "begun", "result"') for line in deployed_lines()]
    there = site(tmp_path, survey=cut, a={": watch ": {"stdout": EMPTY}})
    ended = run("upgrade", there, *WORDS, "--limit", NODE)
    assert ended.code == 1
    assert ended.nodes[NODE]["then"].startswith("went back to deployment 1")
    found = places(ended.err, "Watch chat", "Go back to deployment 1", STEPS[-1])
    assert found == sorted(found)
