"""Whatever becomes of the nodes of a run: document, events, text, HTML, metrics, the file of failed
nodes and the exit code tell the same of each."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.exits import Exit, worst
from cli.retry import names_in
from cli.summary import ORDER, came_to, went_wrong
from locks.lockfile import write_lock
from locks.records import Lock
from tests.fake.command import Ended, fake, inventory, recording, run
from tests.fake.served import served
from tests.fake.test_exit_codes import VERIFIED, whole_lock
from tests.unit.test_metrics import read as read_metrics
from tests.unit.test_verification import lines as verify_lines

GOOD = "dgx-spark"


@dataclass(frozen=True)
class Kind:
    """One way in which a node can be, and what each command makes of it."""

    survey: str  # how its survey is made, see ``lines_of``
    plan: Exit  # of plan --check
    apply: Exit
    status: Exit
    codes: tuple[str, ...] = ()  # of its refusals, or of its error
    words: str = ""  # that begin what is said of its plan, where it has one


KINDS = {
    "ready": Kind("served", Exit.OK, Exit.OK, Exit.OK, words="unchanged, ready"),
    "new": Kind(GOOD, Exit.PENDING, Exit.OK, Exit.OK, words="7 changes"),
    "unwell": Kind("unwell", Exit.PENDING, Exit.OK, Exit.FAILED, words="1 change"),
    "down": Kind("down", Exit.PENDING, Exit.OK, Exit.FAILED, words="1 change"),
    "full": Kind(GOOD, Exit.PENDING, Exit.FAILED, Exit.OK, words="7 changes"),
    "silent": Kind(GOOD, Exit.PENDING, Exit.UNVERIFIED, Exit.OK, words="7 changes"),
    "old": Kind("t4", Exit.REFUSED, Exit.REFUSED, Exit.OK, ("GPU_TOO_OLD",), "refused"),
    "torn": Kind("mismatch", Exit.REFUSED, Exit.REFUSED, Exit.OK, ("DRIVER_MISMATCH",), "refused"),
    "garbage": Kind("garbage", Exit.FAILED, Exit.FAILED, Exit.FAILED, ("SURVEY_FAILED",)),
}
ANSWERS: dict[str, dict[str, Any]] = {
    "full": {": pull ": {"success": False, "stdout": ["no space left on device"]}},
    "silent": {": verify ": {"stdout": verify_lines("boom", status="500")}},
}


@cache
def lines_of(survey: str) -> list[str]:
    """Return what a node of a kind prints when it is surveyed."""
    match survey:
        case "served":
            return served(GOOD)
        case "unwell":
            return served(GOOD, ready=503)
        case "down":
            return served(GOOD, state="failed")
        case "garbage":
            return ["Welcome to Ubuntu"]
    return recording(survey)


@dataclass
class Told:
    """A run over some nodes, and all that was told of it."""

    folder: Path
    kinds: dict[str, Kind]  # by node
    ended: Ended
    people: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its events."""
        lines = (self.folder / "events").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def failed(self) -> list[str]:
        """The nodes that it keeps for a next run."""
        return [line for path in (self.folder / "state").rglob("*.txt") for line in names_in(path)]


def tell(folder: Path, command: str, kinds: list[str], *words: object, lock: Lock | None) -> Told:
    """Run a command over a node of each of these kinds."""
    hosts = []
    for number, kind in enumerate(kinds):
        host, data = fake(f"{kind}-{number}", lines_of(KINDS[kind].survey))
        data["fake_responses"] |= ANSWERS.get(kind, {})
        data["fake_responses"] = {**data["fake_responses"], **{
            program: answer for program, answer in VERIFIED.items()
            if program not in data["fake_responses"]
        }}  # fmt: skip
        hosts.append((host, data))
    site = inventory(folder, *hosts)
    if lock is not None:
        write_lock(folder / "sglang.lock", lock)
    more = ["--json", "--events", folder / "events", *words]
    ended = run(command, site, *more, env={"XDG_STATE_HOME": str(folder / "state")})
    names = [host for host, _ in hosts]
    return Told(folder, dict(zip(names, map(KINDS.get, kinds), strict=True)), ended, ended.err)  # type: ignore[arg-type]


def agrees(told: Told, expected: dict[str, Exit]) -> None:
    """Check what holds of every command."""
    assert "Traceback" not in told.ended.err
    assert told.ended.code == worst(expected.values()), told.ended.err
    nodes = told.ended.nodes
    assert list(nodes) == list(told.kinds)
    ends = {one["node"]: one for one in told.events if one["event"] == "node-ended"}
    assert set(ends) == set(nodes)
    assert told.events[-1]["exit_code"] == told.ended.code
    words = Counter(came_to(one) for one in nodes.values())
    if len(nodes) > 1 and any("changes" in one for one in nodes.values()):
        line = told.people.rpartition(f"{len(nodes)} nodes: ")[2].splitlines()[0]
        assert line == ", ".join(f"{words[word]} {word}" for word in ORDER if words[word])
    bad = [name for name, code in expected.items() if code not in (Exit.OK, Exit.PENDING)]
    assert [name for name in nodes if not ends[name]["ok"]] == bad
    # One node alone is named by whoever ran it: nothing is kept.
    assert told.failed == (bad if len(nodes) > 1 else [])
    for path in (told.folder / "state").rglob("*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, word = line.partition("  # ")
            assert word == went_wrong(nodes[name])
            assert word == {Exit.REFUSED: "refused", Exit.UNVERIFIED: "not verified"}.get(
                expected[name], "failed" if {"changes", "error"} & set(nodes[name]) else "not well"
            )
            assert re.search(rf"\d+ (of \d+ nodes )?{word}: ", told.people)
    for name in bad:
        assert ends[name]["codes"] or ends[name]["failures"]
    for name, node in nodes.items():
        codes = [one["code"] for one in node.get("refusals", ())]
        codes += [node["error"]["code"]] if "error" in node else []
        assert ends[name]["codes"] == codes
        for code in codes:
            assert code in told.people


class _Plans(HTMLParser):
    """Reads the state that the report gives each node, and the counts at its top."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[tuple[str, str]] = []
        self.said: dict[str, str] = {}  # by node: what its plan comes to
        self.counts: dict[str, int] = {}
        self._names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.path.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        self.path.pop()

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.path]
        if tags[-2:] == ["summary", "b"]:
            self._names = data.split(", ")
        elif tags[-2:] == ["summary", "span"] and self.path[-1][1] != "dim":
            self.said |= dict.fromkeys(self._names, data)
        elif tags[-2:] == ["section", "h3"] and data.startswith("@fake/garbage"):
            self.said[data.strip()] = "not surveyed"
        elif tags[-2:] == ["li", "b"]:
            self.counts[self.path[-2][1]] = self.counts.get(self.path[-2][1], 0) + int(data)


def headlines(people: str) -> dict[str, str]:
    """Return what the text says of each node: its plan in a few words, or that it failed."""
    found: dict[str, str] = {}
    for line in people.splitlines():
        if not line.startswith("@fake/"):
            continue
        names, _, rest = re.sub(r"  \(\d+ nodes\)", "", line).partition("  ")
        found |= dict.fromkeys(names.split(", "), rest)
    return found


KINDS_OF_NODES = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=7)
SOME = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", autouse=True)
def _together() -> Iterator[None]:
    """Make each survey once."""
    yield
    lines_of.cache_clear()


@SOME
@given(KINDS_OF_NODES, st.booleans())
def test_a_plan_is_told_alike_everywhere(kinds: list[str], locked: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lock = whole_lock() if locked else None
        told = tell(folder, "plan", kinds, "--check", "--html", folder / "html", lock=lock)
        expected = {node: kind.plan for node, kind in told.kinds.items()}
        if not locked:  # nothing can be said to be as it should
            pending = {Exit.OK: Exit.PENDING}
            expected = {node: pending.get(code, code) for node, code in expected.items()}
        agrees(told, expected)
        planned = {one["node"]: one for one in told.events if one["event"] == "planned"}
        report = _Plans()
        report.feed((folder / "html").read_text(encoding="utf-8"))
        text = headlines(told.people)
        assert set(report.said) == set(told.kinds)
        assert sum(report.counts.values()) == len(told.kinds)
        for node, kind in told.kinds.items():
            document = told.ended.nodes[node]
            if kind.survey == "garbage":
                assert "error" in document
                assert node not in planned
                assert report.said[node] == "not surveyed"
                assert text[node].startswith("SURVEY_FAILED: ")
                continue
            one = planned[node]
            assert one["decision"] == document["decision"]
            assert one["refusals"] == [each["code"] for each in document["refusals"]]
            assert one["refusals"] == list(kind.codes)
            assert one["changes"] == len(document["changes"])
            assert text[node].startswith(report.said[node])
            if locked:
                assert text[node].startswith(kind.words)
            elif not kind.codes:
                assert report.said[node].endswith("unresolved")


@SOME
@given(KINDS_OF_NODES)
def test_an_apply_is_told_alike_everywhere(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        told = tell(Path(name), "apply", kinds, lock=whole_lock())
        agrees(told, {node: kind.apply for node, kind in told.kinds.items()})
        for node, kind in told.kinds.items():
            document = told.ended.nodes[node]
            steps = [one for one in told.events if one.get("node") == node and "step" in one]
            begun = [one["step"] for one in steps if one["event"] == "step-started"]
            ended = [one for one in steps if one["event"] == "step-ended"]
            assert [one["step"] for one in ended] == begun
            assert bool(begun) == bool(document.get("changes"))
            assert all(one["ok"] for one in ended[:-1])
            failed = kind.apply in (Exit.FAILED, Exit.UNVERIFIED) and "error" not in document
            assert all(one["ok"] for one in ended) is not failed
            for verdict in document.get("verified", {}).values():
                assert verdict["ok"] is (kind.apply is Exit.OK)
                assert verdict["result"] in told.people


@SOME
@given(KINDS_OF_NODES)
def test_a_status_is_told_alike_everywhere(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = tell(folder, "status", kinds, "--prometheus", folder / "a.prom", lock=None)
        agrees(told, {node: kind.status for node, kind in told.kinds.items()})
        metrics = read_metrics((folder / "a.prom").read_text(encoding="utf-8"))
        for node, kind in told.kinds.items():
            document = told.ended.nodes[node]
            assert metrics[f'sglang_node_surveyed{{node="{node}"}}'] == ("error" not in document)
            services = document.get("services", [])
            assert len(services) == (kind.survey in ("served", "unwell", "down"))
            for one in services:
                labels = f'node="{node}",service="{one["name"]}"'
                assert metrics[f"sglang_service_ready{{{labels}}}"] == (one["state"] == "ready")
                assert one["ok"] is (kind.status is Exit.OK)
                (row,) = (line for line in told.people.splitlines() if line.startswith(f"{node} "))
                assert f"  {one['state']}  " in row
