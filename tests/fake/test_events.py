"""The events of a run, as a program that follows them reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.events import SCHEMA, Events

from .command import ROOT, fake, inventory, recording, run

GOOD = "two-l4-no-toolkit"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return inventory(tmp_path, fake("a", recording(GOOD)), fake("b", ["Welcome to Ubuntu"]))


@pytest.mark.parametrize("command", ["survey", "plan", "status", "verify", "stop"])
def test_the_events_agree_with_the_document_and_the_exit_code(
    site: Path, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "events"
    ended = run(command, site, "--json", "--events", path)
    told = read(path)
    assert [told[0]["event"], told[-1]["event"]] == ["run-started", "run-ended"]
    assert told[0]["command"] == command
    assert told[-1]["exit_code"] == ended.code
    ends = {one["node"]: one for one in told if one["event"] == "node-ended"}
    assert set(ends) == set(ended.nodes)
    assert not ends["@fake/b"]["ok"]
    assert ends["@fake/b"]["codes"] == ["SURVEY_FAILED"]
    times = [one["time"] for one in told]
    assert times == sorted(times)


def test_each_event_has_what_the_schema_says_and_nothing_else(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    run("plan", site, "--events", path)
    for one in read(path):
        assert set(one) == {"event", "time", *SCHEMA[one["event"]]}


def test_a_plan_is_told_with_its_decision_and_the_codes_of_its_refusals(
    site: Path, tmp_path: Path
) -> None:
    path = tmp_path / "events"
    ended = run("plan", site, "--json", "--events", path)
    (planned,) = (one for one in read(path) if one["event"] == "planned")
    node = ended.nodes["@fake/a"]
    assert planned["decision"] == node["decision"]
    assert planned["refusals"] == [one["code"] for one in node["refusals"]]
    assert planned["changes"] == len(node["changes"])


def test_a_run_that_ends_early_tells_its_end(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    ended = run("survey", site, "--limit", "nobody", "--events", path)
    assert ended.code == 2
    assert read(path)[-1]["exit_code"] == 2


def test_a_file_that_cannot_be_written_is_told_before_any_node_is_contacted(
    site: Path, tmp_path: Path
) -> None:
    ended = run("survey", site, "--events", tmp_path / "not" / "there")
    assert ended.code == 1
    assert "No such file or directory" in ended.err
    assert ended.out == ""


def test_the_documentation_has_every_event_with_every_name() -> None:
    text = (ROOT / "docs/events.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(SCHEMA)
    for event, names in SCHEMA.items():
        assert set(names) <= set(re.findall(r"`([a-z_]+)`", rows[event])), event


def test_an_event_without_all_its_values_is_a_defect() -> None:
    with pytest.raises(ValueError, match="the schema"):
        Events().tell("connected")
