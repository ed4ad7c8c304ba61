"""One bad node never stops the others, and a node is known by one remote command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from locks.lockfile import write_lock
from tests.fake.command import CHAT, Ended, fake, inventory, recording, run
from tests.fake.served import served
from tests.fake.test_exit_codes import whole_lock

GOOD = "dgx-spark"

SURVEYS = {
    "garbage": ["Welcome to Ubuntu", "\x1b[31m%%%", "sglang-survey"],
    "cut": recording(GOOD)[:60],
    "empty": [],
    "newer": ["sglang-survey 99 9.9.9", "@ end"],
    "fails": {"success": False, "stderr": ["sh: 1: Syntax error"]},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory whose nodes are bad in every way, between two good ones."""
    return inventory(
        tmp_path_factory.mktemp("site"),
        fake("first", recording(GOOD)),
        *(fake(name, lines) for name, lines in SURVEYS.items()),
        (
            "127.0.0.1",
            {"ssh_port": 1, "ssh_user": "nobody", "ssh_known_hosts_file": "/dev/null"},
        ),
        fake("last", recording(GOOD)),
    )


@pytest.fixture(scope="module")
def planned(site: Path) -> Ended:
    """The plan over all of them."""
    return run("plan", site, "--json")


def test_the_good_nodes_are_planned_whatever_the_others_are(planned: Ended) -> None:
    assert planned.code == 1
    for name in ("@fake/first", "@fake/last"):
        assert planned.nodes[name]["decision"] == "image"
        assert planned.nodes[name]["changes"]


def test_the_document_has_every_node_in_the_inventory_s_order(planned: Ended) -> None:
    assert list(planned.nodes) == [
        "@fake/first",
        *(f"@fake/{name}" for name in SURVEYS),
        "127.0.0.1",
        "@fake/last",
    ]


@pytest.mark.parametrize("name", SURVEYS)
def test_a_survey_that_cannot_be_read_fails_its_node_with_a_sentence(
    planned: Ended, name: str
) -> None:
    error = planned.nodes[f"@fake/{name}"]["error"]
    assert error["code"] == "SURVEY_FAILED"
    assert len(error["text"]) > 20
    assert "Traceback" not in planned.err


def test_a_node_that_cannot_be_reached_fails_with_the_reason(planned: Ended) -> None:
    error = planned.nodes["127.0.0.1"]["error"]
    assert error["code"] == "UNREACHABLE"
    assert "could not be reached" in error["text"]


@pytest.mark.parametrize("command", ["survey", "status", "verify", "stop"])
def test_every_command_goes_on_with_the_others(site: Path, command: str) -> None:
    ended = run(command, site, "--json")
    assert ended.code == 1
    assert next(iter(ended.nodes)) == "@fake/first"
    assert len(ended.nodes) == len(SURVEYS) + 3
    assert "Traceback" not in ended.err
    if command == "survey":
        assert ended.nodes["@fake/last"]["survey"]["schema"] == 1
    if command == "status":
        assert ended.nodes["@fake/last"]["services"] == []


def test_a_survey_that_cannot_be_read_is_recorded_all_the_same(site: Path, tmp_path: Path) -> None:
    ended = run("survey", site, "--record", tmp_path / "kept")
    assert ended.code == 1
    kept = (tmp_path / "kept" / "fake-garbage.survey").read_text(encoding="utf-8")
    assert "Welcome to Ubuntu" in kept
    assert (tmp_path / "kept" / "fake-last.survey").is_file()


def test_a_recording_that_is_no_good_or_not_there_is_named(site: Path, tmp_path: Path) -> None:
    for name in ("first", "last"):
        text = "\n".join(recording(GOOD)) + "\n"
        (tmp_path / f"fake-{name}.survey").write_text(text, encoding="utf-8")
    (tmp_path / "fake-first.survey").write_text("nonsense\n", encoding="utf-8")
    words = ["plan", site, "--survey", tmp_path, "--json", "--limit", "@fake/last"]
    ended = run(*words, "--limit", "@fake/first")
    assert ended.code == 1
    assert ended.nodes["@fake/first"]["error"]["code"] == "SURVEY_FAILED"
    assert ended.nodes["@fake/last"]["decision"] == "image"
    missing = run(*words, "--limit", "@fake/cut")
    assert missing.code == 2
    assert "fake-cut.survey" in missing.err


PROGRAM = """
import json, sys
import cli.session
kept = []
init = cli.session.Session.__init__
def remember(self, state, *more):
    init(self, state, *more)
    kept.append(state)
cli.session.Session.__init__ = remember
from cli.main import cli as command
try:
    command([*json.loads(sys.argv[1])], standalone_mode=False)
except SystemExit:
    pass
counts = {h.name: h.connector.executed_commands for s in kept for h in s.inventory}
print(json.dumps({name: [c[:40] for c in cs] for name, cs in counts.items()}))
"""


def commands(*words: str | Path) -> dict[str, list[str]]:
    """Return the remote commands that a command of ours ran on each node."""
    told = json.dumps([str(word) for word in words])
    ended = run(told, program=PROGRAM)
    assert ended.code == 0, ended.err
    found: dict[str, list[str]] = json.loads(ended.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("command", ["plan", "survey", "status"])
def test_a_node_is_known_by_one_remote_command(tmp_path: Path, command: str) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)), fake("b", recording(GOOD)))
    found = commands(command, site)
    assert set(found) == {"@fake/a", "@fake/b"}
    for ran in found.values():
        assert len(ran) == 1
        assert "sglang-survey" in ran[0]


def test_a_record_asks_a_node_all_that_a_plan_asks(tmp_path: Path) -> None:
    services = [CHAT, {**CHAT, "name": "local", "model": "/srv/models/x", "port": 30001}]
    site = inventory(tmp_path, fake("a", recording(GOOD)), services=services)
    asked = [
        re.findall(r"(?:model|space|weights|text)=\S+", run(command, site, "-vv").err)
        for command in ("survey", "plan")
    ]
    assert "model=/srv/models/x" in asked[0]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("command", ["plan", "apply", "status"])
def test_a_converged_node_costs_one_remote_command(tmp_path: Path, command: str) -> None:
    nodes = [fake(name, served(GOOD)) for name in "abc"]
    site = inventory(tmp_path, *nodes)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    if command != "status":
        assert run(command, site, "--json").nodes["@fake/a"]["changes"] == []
    found = commands(command, site)
    assert [len(ran) for ran in found.values()] == [1, 1, 1]


def test_data_that_is_no_good_contacts_no_node(tmp_path: Path) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)), services=[CHAT | {"tp-size": 2}])
    ended = run("plan", site, "-vv")
    assert ended.code == 2
    assert "@fake/a: services[chat].tp-size: is no key of ours: write tp_size" in ended.err
    assert "sglang-survey" not in ended.err
    assert ended.out == ""


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ([CHAT | {"port": "x"}], "services[chat].port"),
        ([], "services: is empty"),
        ([CHAT, CHAT], "services: two are named 'chat'"),
        ([{"name": "a"}], "services[a].model: is missing"),
        (7, "services"),
    ],
)
def test_bad_data_is_told_with_its_key(tmp_path: Path, services: object, said: str) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)), services=services)
    ended = run("plan", site)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_service_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)))
    for command in ("verify", "restart", "stop", "rollback"):
        ended = run(command, site, "--service", "nope")
        assert ended.code == 1
        assert "nope is not deployed here: no service is deployed here" in ended.out + ended.err, (
            command
        )


def test_a_remove_of_nothing_is_done_and_changes_nothing(tmp_path: Path) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)))
    found = commands("remove", site, "--yes")
    assert [len(ran) for ran in found.values()] == [1]
    asked = run("remove", site)
    assert asked.code == 2
    assert "add --yes" in asked.err


def test_what_nothing_says_to_serve_is_told_how_to(tmp_path: Path) -> None:
    path = tmp_path / "site.py"
    path.write_text("nodes = ['@fake/a']\n", encoding="utf-8")
    ended = run("plan", path)
    assert ended.code == 2
    assert "inventories/example.py" in ended.err
    named = run("plan", "@fake/a")
    assert named.code == 2
    assert "--model" in named.err


def test_metrics_that_no_collector_would_read_are_refused_before_any_node_is_asked(
    tmp_path: Path,
) -> None:
    site = inventory(tmp_path, fake("a", recording(GOOD)))
    ended = run("status", site, "--prometheus", tmp_path / "sglang.txt")
    assert ended.code == 2
    assert f"write {tmp_path}/sglang.txt.prom" in ended.err
    assert ended.out == ""
    assert not (tmp_path / "sglang.txt").exists()
