"""The door before a node's servers: what may be asked for, what a plan makes of it, how it moves."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from facts.parsing import parse_survey
from facts.records import ABSENT, DoorServer, Listener, ManagedFile, Survey, Unknown
from plans import paths
from plans.difference import Words
from plans.door import switch
from plans.doorline import door_line
from plans.doorplan import plan_door
from plans.findings import Findings
from plans.launch import TEMPLATES
from plans.make import make_plan
from plans.saved import digest
from plans.secrets import NONE
from plans.upgrading import with_release
from plans.version import VERSION as TOOLKIT
from plans.wishes import WishesError, read_wishes
from releases.door import VERSION, door_lock, door_problems, door_text
from releases.wheels.records import ARCHITECTURES
from releases.wheels.text import read_lock
from tests.recorded.compose_surveys import Machine, compose, machines
from tests.unit.deployments import CAP, codes, edited, kinds, lock, plan, with_file, with_state
from tests.unit.doorplans import KEY, bare, door_plan, of_door, stands
from tests.unit.surveys import wishes


def settings(made: Any) -> Any:
    return json.loads(of_door(made).files[0].text)


# --- what may be asked for


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ({}, "door.port: is missing"),
        ({"port": 30000}, "door.port: chat has port 30000 too"),
        ({"port": 80}, "door.port: "),
        ({"port": True}, "door.port: is true or false"),
        ({"port": "8000"}, "door.port: is '8000': write a number, without quotes"),
        ({"port": 8000, "keys": [{"env": "A"}, {"env": "1"}]}, "door.keys: [1] "),
        ({"port": 8000, "keys": [{"env": "A"}, None]}, "door.keys: [1] is None"),
        ({"port": 8000, "host": "example.org"}, "door.host: is 'example.org': write an IP"),
        ({"port": 8000, "servers": ["other"]}, "door.servers: names 'other'"),
        ({"port": 8000, "servers": ["https://10.0.0.1:1"]}, "write a name, or http://HOST:PORT"),
        ({"port": 8000, "servers": ["http://u:p@h:1"]}, "door.servers: holds an @"),
        ({"port": 8000, "servers": ["chat", "chat"]}, "door.servers: names a server twice"),
        ({"port": 8000, "wait": -1}, "door.wait: "),
        ({"port": 8000, "model": "x"}, "door.model: is no key of ours"),
    ],
)
def test_what_is_wrong_with_a_door_is_said_with_its_key(door: dict[str, Any], said: str) -> None:
    with pytest.raises(WishesError) as caught:
        wishes(door=door)
    assert any(said in line for line in caught.value.messages), caught.value.messages


@pytest.mark.parametrize("keys", ["sk-my-own-key", ["sk-my-own-key"], {"env": "sk-my-own-key"}])
def test_a_key_itself_is_refused_and_not_repeated(keys: Any) -> None:
    with pytest.raises(WishesError) as caught:
        wishes(door={"port": 8000, "keys": keys})
    assert "door.keys" in str(caught.value)
    assert "my-own" not in str(caught.value)


def test_the_wishes_survive_a_kept_plan() -> None:
    given = wishes(door={"port": 8000, "keys": {"env": "A"}, "servers": ["http://10.0.0.2:30000/"]})
    again = read_wishes(given.model_dump(mode="json", exclude_unset=True), "node")
    assert again.door == given.door


@pytest.mark.parametrize("machine", machines(), ids=lambda machine: machine.name)
def test_the_demonstration_s_nodes_can_be_planned_with_a_door(machine: Machine) -> None:
    node = parse_survey(compose(machine).splitlines(), machine.name)
    without = codes(make_plan(node, wishes(), None, TOOLKIT))
    assert codes(make_plan(node, wishes(door={"port": 8000}), None, TOOLKIT)) == without


# --- the plan


def test_a_node_gets_the_door_after_its_service() -> None:
    made = door_plan(keys=(KEY,))
    assert codes(made) == []
    wanted = [
        "environment",
        "door",
        "credential",
        *["unit"] * 3,
        "daemon-reload",
        "enable",
        "start",
    ]
    assert kinds(made)[-9:] == wanted
    door = of_door(made)
    assert door.act == "start"
    assert settings(made)["servers"] == [{"name": "chat", "url": "http://127.0.0.1:30000"}]
    assert settings(made)["wait"] == 60
    assert f"sglang-router {VERSION}" in "".join(change.what for change in made.changes)


def test_no_key_is_in_what_a_plan_says_or_writes_for_others() -> None:
    made = door_plan(keys=(KEY,))
    shown = json.dumps(made.as_dict()) + repr(made) + switch(of_door(made))
    shown += "".join(file.text for file in of_door(made).files)
    assert KEY not in shown
    assert of_door(made).keys is not None


def test_a_door_that_stands_is_not_changed() -> None:
    node = stands(door_plan(keys=(KEY,)))
    made = door_plan(node, keys=(KEY,))
    assert made.changes == ()
    assert made.converged
    door = of_door(made)
    assert (door.act, door.new, door.installs, door.keys) == ("none", False, False, None)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"wait": 90}, ["door", "renew"]),
        ({"host": "10.0.0.1"}, ["door", "renew"]),
        ({"servers": ["chat", "http://10.0.0.2:30000"]}, ["door", "renew"]),
    ],
)
def test_other_settings_are_taken_by_the_door_that_runs(
    change: dict[str, Any], wanted: list[str]
) -> None:
    made = door_plan(stands(door_plan(keys=(KEY,))), change, keys=(KEY,))
    assert kinds(made) == wanted
    assert of_door(made).act == "renew"
    assert "systemctl start sglang-door-renew.service" in switch(of_door(made))
    assert "systemctl restart" not in switch(of_door(made))


def test_another_key_is_written_and_taken_by_the_door_that_runs() -> None:
    made = door_plan(stands(door_plan(keys=(KEY,))), keys=(KEY, "n" * 32))
    assert kinds(made) == ["credential", "renew"]


def test_a_run_cut_before_the_door_took_the_key_is_gone_on_with() -> None:
    node = stands(door_plan(keys=(KEY,)))
    node = replace(node, door=replace(node.door, keys="0" * 64))
    assert kinds(door_plan(node, keys=(KEY,))) == ["renew"]


def test_packages_of_another_version_are_taken_while_the_door_serves_and_those_made_anew_are_not() -> (
    None
):
    there = stands(door_plan())
    other = replace(there, environments={})
    # The same packages are to be made again, under the door that runs from them.
    assert kinds(door_plan(other)) == ["environment", "restart"]
    text = json.dumps({"units": {}, "key": "1" * 16})
    path = f"{paths.DOORS}/current/door.json"
    other = with_file(other, path, lambda file: replace(file, sha256="f" * 64, text=text))
    other = replace(other, door=replace(other.door, current="1" * 16, settings="1" * 16))
    assert kinds(door_plan(other)) == ["environment", "door", "renew"]


def test_a_server_that_a_cut_run_left_out_is_let_back_in_and_one_that_is_held_is_not() -> None:
    node = stands(door_plan())
    for state, wanted in (("out-passing", ["door"]), ("out-held", []), ("down", [])):
        servers = {"chat": DoorServer(state, "http://127.0.0.1:30000")}
        made = door_plan(replace(node, door=replace(node.door, servers=servers)))
        assert kinds(made) == wanted, state
        said = [one.code for one in made.cautions]
        assert ("DOOR_HELD_OUT" in said) == (state == "out-held")


@pytest.mark.parametrize("name", ["door.json", "door.py", "door.env"])
def test_an_edited_file_is_refused_and_on_word_written_to_another_place(name: str) -> None:
    made = door_plan()
    node = with_file(stands(made), f"{paths.DOORS}/current/{name}", edited)
    assert "FILE_EDITED" in codes(door_plan(node))
    again = door_plan(node, discard_edits=True)
    assert codes(again) == []
    assert of_door(again).key != of_door(made).key
    # The other place is as good as the first: nothing is written to and fro.
    assert door_plan(stands(again, node)).changes == ()


def test_an_edited_unit_is_refused_and_one_of_an_earlier_version_is_not() -> None:
    node = stands(door_plan())
    assert "FILE_EDITED" in codes(door_plan(with_file(node, paths.DOOR_UNIT, edited)))
    older = with_file(node, paths.DOOR_UNIT, edited)
    path = f"{paths.DOORS}/current/door.json"
    text = json.dumps({"unit": "e" * 64})
    older = with_file(older, path, lambda file: replace(file, sha256="f" * 64, text=text))
    older = replace(older, door=replace(older.door, current="1" * 16, settings="1" * 16))
    made = door_plan(older)
    assert codes(made) == []
    assert kinds(made) == ["door", "unit", "daemon-reload", "restart"]
    assert "systemctl restart" in switch(of_door(made))


@pytest.mark.parametrize("name", ["sglang-door-renew.service", "sglang-door-renew.timer"])
def test_another_unit_beside_the_door_s_own_does_not_restart_it(name: str) -> None:
    node = stands(door_plan())
    path = f"{paths.DOOR_UNIT.rpartition('/')[0]}/{name}"
    assert codes(door_plan(with_file(node, path, edited))) == ["FILE_EDITED"]
    gone = with_file(node, path, lambda file: ManagedFile(file.path, exists=False))
    assert kinds(door_plan(gone)) == ["unit", "daemon-reload"]


def test_a_door_that_is_no_longer_wanted_is_taken_away() -> None:
    node = stands(door_plan())
    made = plan(node)
    assert kinds(made) == ["door"]
    assert of_door(made).act == "remove"


def test_a_kept_plan_is_stale_when_the_door_would_be_another() -> None:
    assert digest(door_plan()) != digest(door_plan(door={"wait": 61}))


# --- what it says


def test_a_door_without_a_key_that_others_reach_is_warned_of() -> None:
    for door, keys, wanted in (
        ({"host": "0.0.0.0"}, (), True),
        ({"host": "0.0.0.0"}, (KEY,), False),
        ({}, (), False),
    ):
        said = [one.code for one in door_plan(door=door, keys=keys).cautions]
        assert ("OPEN_WITHOUT_KEY" in said) == wanted


def test_a_server_with_a_key_of_its_own_is_refused_behind_the_door() -> None:
    assert "DOOR_BEFORE_KEY" in codes(door_plan(service={"api_key": {"env": "A"}}))


def test_a_port_that_somebody_has_is_refused_and_the_door_s_own_is_not() -> None:
    taken = (Listener("0.0.0.0", 8000, 7, "nginx"),)
    (refusal,) = door_plan(replace(bare(), listeners=taken)).refusals
    assert refusal.code == "PORT_TAKEN"
    node = stands(door_plan())
    node = replace(node, door=replace(node.door, pid="101"))
    # The keeper has the socket, and the process that serves.
    for pid, wanted in ((99, []), (101, []), (102, ["PORT_TAKEN"])):
        listener = Listener("127.0.0.1", 8000, pid, "python3")
        assert codes(door_plan(replace(node, listeners=(listener,)))) == wanted


def test_a_start_longer_than_requests_wait_is_said_with_its_figure() -> None:
    node = with_state(stands(door_plan()), record='{"first_answer_seconds": 1200}')
    (caution,) = [one for one in door_plan(node).cautions if one.code == "DOOR_GAP"]
    assert "took 1200 s" in caution.text
    assert "the first 1140 s get 503" in caution.text
    two = door_plan(node, {"servers": ["chat", "http://10.0.0.2:30000"]})
    assert "DOOR_GAP" not in [one.code for one in two.cautions]
    short = with_state(stands(door_plan()), record='{"first_answer_seconds": 23}')
    assert "the last start took 23 s" in " ".join(door_plan(short).reasons)


def test_models_that_differ_are_refused_behind_one_door() -> None:
    wanted = wishes(CAP, CAP | {"served_name": "other"}, door={"port": 8000})
    found = Findings()
    plan_door(wanted, bare(), NONE, found, words=Words(False, False), bundle=None)
    assert "DOOR_MODELS_DIFFER" in [one.code for one in found.refusals]


def test_a_door_that_could_not_be_read_is_not_touched() -> None:
    node = stands(door_plan())
    node = replace(node, door=replace(node.door, current=Unknown("unreadable", "no permission")))
    assert "DOOR_UNREAD" in codes(door_plan(node))


@pytest.mark.parametrize(
    ("changes", "state", "bad"),
    [
        ({}, "serving: chat in", False),
        ({"active_state": "failed", "servers": {}}, "failed", True),
        ({"servers": {"chat": DoorServer("down", "u")}}, "nobody to serve: chat down", True),
        ({"active_state": ABSENT, "servers": {}}, "absent", True),
    ],
)
def test_status_has_a_line_of_the_door(changes: dict[str, Any], state: str, bad: bool) -> None:
    node = stands(door_plan())
    line = door_line(replace(node, door=replace(node.door, **changes)))
    assert line is not None
    assert (line.state, line.bad) == (state, bad)
    assert door_line(bare()) is None


# --- the survey, the lock, the programs


def surveyed(*lines: str) -> Survey:
    text = ["sglang-survey 1 0.1.0", "@ door rc=0", *(f" {line}" for line in lines), "@ end"]
    return parse_survey(text, "node")


def test_the_survey_reads_what_the_door_says_of_itself() -> None:
    door = surveyed(
        "link 0123456789abcdef",
        "state door 1",
        "state pid 99",
        "state settings 0123456789abcdef",
        "state server chat in http://127.0.0.1:30000",
        "ActiveState=active",
        "MainPID=99",
    ).door
    assert (door.current, door.settings, door.active_state) == ("0123456789abcdef",) * 2 + (
        "active",
    )
    assert door.servers == {"chat": DoorServer("in", "http://127.0.0.1:30000")}


def test_what_a_door_says_in_another_form_is_not_believed() -> None:
    door = surveyed("link ../../etc", "state server chat", "state pid", "ActiveState=").door
    assert door.current == Unknown("malformed", "../../etc")
    assert door.servers == {}
    assert door.active_state == ABSENT


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_lock_of_each_architecture_can_be_installed_and_reads_back(architecture: str) -> None:
    lock = door_lock(architecture)
    assert lock is not None
    assert door_problems(lock) == []
    assert read_lock(door_text(lock)) == lock
    assert door_text(lock).startswith("# sglang-router 0.3.2 ")


def test_there_is_no_lock_for_another_machine() -> None:
    node = bare()
    node = replace(node, host=replace(node.host, architecture="riscv64"))
    assert "WHEELS_WRONG_PLATFORM" in codes(door_plan(node))


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (b"Bearer " + KEY.encode(), True),
        (b"bearer " + KEY.encode() + b" ", True),
        (b"Basic " + KEY.encode(), False),
        (b"Bearer \xff\xfe", False),
        (b"Bearer " + KEY.encode() + b"\xff", False),
        ("Bearer \u00fc".encode(), False),
        (b"", False),
    ],
)
def test_a_key_that_is_no_text_is_a_wrong_key(sent: bytes, known: bool) -> None:
    program = runpy.run_path(str(TEMPLATES / "door.py"))
    door = program["Door"]({"wait": 0}, [KEY.encode()], None, None, None)
    # As aiohttp reads the bytes of a header.
    header = sent.decode("utf-8", "surrogateescape")
    assert door.knows(SimpleNamespace(headers={"Authorization": header})) is known


def test_a_plan_for_some_services_leaves_the_door_as_it_is() -> None:
    there = stands(door_plan(keys=(KEY,)))
    both = {"port": 8000, "servers": ["chat", "chat1"]}
    services = [
        {"name": "chat", "model": "Qwen/Qwen3-8B", **CAP},
        {"name": "chat1", "model": "Qwen/Qwen3-8B", "port": 30001, **CAP},
    ]
    whole = read_wishes({"services": services, "door": both}, "node")
    cut = with_release(whole, "0.5.23", ("chat",), "node")
    for wanted in (cut, cut.model_copy(update={"door": None})):
        made = make_plan(there, wanted, lock(), TOOLKIT, with_door=False)
        assert made.door is None
        assert not [one for one in made.changes if one.what == "door" or "door" in one.why]
    gone = make_plan(there, cut.model_copy(update={"door": None}), lock(), TOOLKIT)
    assert of_door(gone).act == "remove"
