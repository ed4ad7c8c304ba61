"""Halves of prefill/decode pairs: how each is asked, what they need, and the door before them."""

from __future__ import annotations

import asyncio
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts.parsing import parse_survey
from facts.records import DoorServer
from plans.door import switch
from plans.doorline import door_line
from plans.findings import Findings
from plans.launch import TEMPLATES
from plans.make import make_plan
from plans.pair import BOOTSTRAP_PORT, bootstrap_port, half_of
from plans.pairchecks import check_transfer
from plans.probe import probes
from plans.proving import tries
from plans.refusals import Refusal
from plans.scripts import verify
from plans.verification import judge
from tests.unit.deployments import CAP, VERSION, codes, fresh, lock, plan
from tests.unit.doorplans import bare, of_door, stands
from tests.unit.surveys import wishes
from tests.unit.wheels import wheel_plan

PREFILL: dict[str, Any] = CAP | {"name": "one", "port": 30000, "network": "host", "gpus": [0]}
SHARE = {"mem-fraction-static": 0.4}
PREFILL = PREFILL | {"arguments": {**SHARE, "disaggregation-mode": "prefill"}}
DECODE = PREFILL | {
    "name": "two",
    "port": 30001,
    "arguments": {**SHARE, "disaggregation_mode": "decode"},
}
DOOR = {"port": 8000, "pd_disaggregation": True}


def half(**changes: Any) -> Any:
    return wishes(PREFILL | changes).services[0]


def pair(
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    door: dict[str, Any] | None = None,
) -> Any:
    """Return the plan of a node with these two halves, and this door."""
    both = (PREFILL | (first or {}), DECODE | (second or {}))
    return make_plan(bare(), wishes(*both, door=DOOR | (door or {})), lock(), VERSION)


def refused(made: Any) -> list[Refusal]:
    return [one for one in made.refusals if one.code == "PREFILL_DECODE"]


@pytest.mark.parametrize(
    ("arguments", "which", "port"),
    [
        ({}, None, None),
        ({"disaggregation-mode": "null"}, None, None),
        ({"--disaggregation_mode": "prefill"}, "prefill", BOOTSTRAP_PORT),
        ({"disaggregation-mode": "prefill", "disaggregation-bootstrap-port": 9}, "prefill", 9),
        ({"disaggregation-mode": "decode", "disaggregation-bootstrap-port": 9}, "decode", None),
    ],
)
def test_a_half_is_known_by_its_arguments(
    arguments: dict[str, Any], which: str | None, port: int | None
) -> None:
    service = half(arguments=arguments)
    assert (half_of(service), bootstrap_port(service)) == (which, port)


def test_a_half_is_asked_as_sglang_s_own_health_check_asks_it_and_another_server_is_not() -> None:
    for one in probes(half()):
        body = json.loads(one.body)
        assert (body["bootstrap_host"], body["bootstrap_room"]) == ("2.2.2.2", 0)
    assert "bootstrap" not in "".join(one.body for one in probes(half(arguments={})))


def test_what_a_half_cannot_do_alone_is_not_tried_of_it() -> None:
    arguments = {"disaggregation-mode": "decode", "tool-call-parser": "qwen25"}
    assert [one.name for one in tries(half(arguments=arguments))] == ["stream", "cancel"]
    assert all("bootstrap_room" in one.chat.body for one in tries(half(arguments=arguments)))
    del arguments["disaggregation-mode"]
    names = [one.name for one in tries(half(arguments=arguments))]
    assert names == ["stream", "cancel", "schema", "tool"]


def test_a_pair_behind_its_door_is_planned() -> None:
    made = pair()
    assert not made.refusals
    door = json.loads(of_door(made).files[0].text)
    assert door["pd_disaggregation"] is True
    assert of_door(made).proves
    assert "door_pair 120" in switch(of_door(made))


def test_one_without_a_door_is_planned_and_warned_of() -> None:
    made = plan(wanted=wishes(PREFILL))
    assert not made.refusals
    (caution,) = [one for one in made.cautions if one.code == "PREFILL_DECODE"]
    assert "answers nobody alone" in caution.text


@pytest.mark.parametrize(
    ("first", "door", "said"),
    [
        ({"network": "bridge"}, {}, "in a network of its own container"),
        ({"kind": "embed"}, {}, "its kind is embed"),
        ({}, {"pd_disaggregation": False}, "the door gives each request to one server"),
        ({"arguments": SHARE}, {}, "one answers alone, and the door gives each request to two"),
        ({}, {"servers": ["one"]}, "none is a decode half"),
        ({}, {"servers": ["one", "http://10.0.0.2:30000"]}, "servers of other nodes"),
        (
            {"address": "0.0.0.0"},
            {"servers": ["one", "http://10.0.0.2:30000"]},
            "servers of other nodes",
        ),
    ],
)
def test_a_pair_that_could_not_work_is_refused(
    first: dict[str, Any], door: dict[str, Any], said: str
) -> None:
    sentences = [f"{one.seen}" for one in refused(pair(first, door=door))]
    assert any(said in one for one in sentences), sentences


@pytest.mark.parametrize(
    ("arguments", "requirements", "said"),
    [
        ({}, "sglang==0.5.23 \\\n", "has no mooncake-transfer-engine"),
        ({}, "sglang==0.5.23 \\\nmooncake-transfer-engine-cuda13==0.3.13 \\\n", None),
        ({"disaggregation-transfer-backend": "nixl"}, "sglang==0.5.23 \\\n", "has no nixl"),
        ({"disaggregation-transfer-backend": "nixl"}, "nixl==1.0.0 \\\n", None),
        ({"disaggregation-transfer-backend": "mori"}, "sglang==0.5.23 \\\n", None),
        ({"disaggregation-mode": "null"}, "sglang==0.5.23 \\\n", None),
    ],
)
def test_packages_without_what_hands_over_the_cache_are_refused(
    arguments: dict[str, Any], requirements: str, said: str | None
) -> None:
    found = Findings()
    service = half(arguments=PREFILL["arguments"] | arguments)
    check_transfer(service, requirements, found)
    assert [said in one.seen for one in found.refusals if said] == ([True] if said else [])
    assert len(found.refusals) == bool(said)


def test_a_half_from_the_locked_packages_alone_is_refused() -> None:
    made = wheel_plan(wanted=wishes(PREFILL))
    assert any("has no mooncake-transfer-engine" in one.seen for one in refused(made))


def test_halves_that_others_reach_may_be_on_several_nodes() -> None:
    there = {"address": "10.0.0.8"}
    made = pair(there, there, {"servers": ["one", "two", "http://10.0.0.2:30000"]})
    assert not made.refusals
    # Whether those of other nodes are there yet, an apply of this one does not know.
    assert not of_door(made).proves


@pytest.mark.parametrize("port", [30001, 8000, 22000])
def test_a_port_at_which_halves_meet_is_kept_free(port: int) -> None:
    arguments = {**PREFILL["arguments"], "disaggregation-bootstrap-port": port}
    made = pair({"arguments": arguments})
    assert "PORT_TAKEN" in codes(made)
    (refusal,) = [one for one in made.refusals if "bootstrap server" in one.needed]
    assert "disaggregation-bootstrap-port" in refusal.advice


def test_two_prefill_halves_of_a_node_need_two_such_ports() -> None:
    alike = {"arguments": PREFILL["arguments"]}
    said = [one.seen for one in pair(second=alike).refusals if one.code == "PORT_TAKEN"]
    assert any("the bootstrap server of two has port 8998" in one for one in said)


# --- what is said of them


def verified(*more: str) -> list[str]:
    body = json.dumps(
        {
            "choices": [{"message": {"content": ""}, "finish_reason": "length"}],
            "usage": {"completion_tokens": 1},
        }
    )
    return [
        "@ before", " ActiveState=active", " InvocationID=a", " NRestarts=0",
        "@ ready", " ok", " 200",
        "@ models", ' {"data": [{"id": "Qwen/Qwen3-8B"}]}', " 200",
        "@ answer", f" {body}", " 200",
        *more,
        "@ after", " ActiveState=active", " InvocationID=a", " NRestarts=0",
        "@ end",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "ok", "sentence"),
    [
        ((), True, "ready, and it generates alone, as a prefill half"),
        (("@ pair", " answers"), True, "behind the door a pair generates"),
        (("@ pair", " nobody"), True, "its other half is not there"),
        (("@ pair", " fails"), False, "no prefill/decode pair generates"),
        (("@ pair", " tried"), False, "no prefill/decode pair generates within 60 s"),
    ],
)
def test_a_verify_of_a_half_says_what_clients_see(
    said: tuple[str, ...], ok: bool, sentence: str
) -> None:
    found = judge(verified(*said), half(), "0.5.23")
    assert found.ok == ok, found
    assert sentence in found.sentence


def test_only_a_half_asks_the_door_for_its_pair() -> None:
    assert "door_pair 60" in verify(half(), "0.5.23", 1)
    assert "door_pair 60" not in verify(half(arguments={}), "0.5.23", 1)


@pytest.mark.parametrize(
    ("pair_says", "states", "said", "bad"),
    [
        ("answers", ("in", "in"), "serving: one in, two in", False),
        ("nobody", ("in", "down"), "nobody to serve: one in, two down", True),
        ("fails", ("in", "in"), "no prefill/decode pair generates: one in, two in", True),
    ],
)
def test_status_has_what_the_door_says_of_the_pair(
    pair_says: str, states: tuple[str, str], said: str, bad: bool
) -> None:
    node = stands(pair())
    servers = dict(zip(("one", "two"), (DoorServer(one, "u") for one in states), strict=True))
    line = door_line(replace(node, door=replace(node.door, servers=servers, pair=pair_says)))
    assert line is not None
    assert (line.state, line.bad) == (said, bad)


def test_the_survey_reads_whether_a_pair_answers() -> None:
    lines = ["sglang-survey 1 0.1.0", "@ door rc=0", " state pair answers", "@ end"]
    assert parse_survey(lines, "node").door.pair == "answers"


# --- the door's program


class PlayedRouter:
    """What is asked of sglang-router, with the answers that a test gives it."""

    pairs = True

    def __init__(self) -> None:
        self.there: dict[str, tuple[str, bool]] = {}
        self.told: list[dict[str, Any]] = []
        self.problem: str | None = None

    async def workers(self) -> dict[str, tuple[str, bool]]:
        return dict(self.there)

    async def ask(self, method: str, path: str, **more: Any) -> None:
        if method == "POST":
            self.told.append(more["json"])
            self.there[more["json"]["url"]] = (f"id{len(self.told)}", True)
        else:
            self.there = {u: one for u, one in self.there.items() if f"/workers/{one[0]}" != path}

    async def generate(self) -> str | None:
        return self.problem


def servers(folder: Path, router: PlayedRouter, modes: dict[str, str]) -> Any:
    program = runpy.run_path(str(TEMPLATES / "door.py"))
    settings = {"servers": [{"name": n, "url": f"http://{n}"} for n in modes]}
    found = program["Servers"]([], settings, str(folder), str(folder / "out"), router, None)
    (folder / "out").mkdir(exist_ok=True)

    async def answers(url: str) -> bool:
        return True

    async def half_at(url: str) -> dict[str, Any] | None:
        mode = modes[url.removeprefix("http://")]
        told: dict[str, Any] = {"worker_type": mode}
        return told | {"bootstrap_port": 8998} if mode == "prefill" else told if mode else None

    found.answers, found.half_at = answers, half_at
    return found


async def rounds(found: Any, count: int = 3) -> None:
    for _ in range(count):
        await found.look()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_the_door_lets_halves_in_as_what_they_are_and_serves_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        router = PlayedRouter()
        found = servers(tmp_path, router, {"one": "prefill", "two": "decode", "three": ""})
        await rounds(found)
        assert router.told == [
            {"url": "http://one", "worker_type": "prefill", "bootstrap_port": 8998},
            {"url": "http://two", "worker_type": "decode"},
        ]
        assert capsys.readouterr().out.count("three answers, and is no half") == 1
        assert found.serve()
        assert found.some.is_set()
        assert "pair answers\n" in (tmp_path / "state").read_text()
        # One of them leaves: nobody is served, and clients wait.
        (tmp_path / "out" / "two").write_text("held")
        await rounds(found)
        assert not found.some.is_set()
        assert "pair nobody\n" in (tmp_path / "state").read_text()
        (tmp_path / "out" / "two").unlink()
        await rounds(found)
        assert "pair answers\n" in (tmp_path / "state").read_text()

    asyncio.run(run())


def test_a_pair_that_does_not_generate_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        router = PlayedRouter()
        router.problem = "status 500: Lost connection with prefill instance"
        found = servers(tmp_path, router, {"one": "prefill", "two": "decode"})
        await rounds(found)
        assert "pair fails\n" in (tmp_path / "state").read_text()
        found.proof.cancel()

    asyncio.run(run())


def test_a_server_that_a_cut_run_left_out_is_back_at_once_where_only_its_kind_is_missing(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        router = PlayedRouter()
        found = servers(tmp_path, router, {"one": "prefill", "two": "decode"})
        await rounds(found)
        (tmp_path / "out" / "one").write_text("away 720")
        await rounds(found)
        assert found.states["one"] == "out-away"
        found.away["one"].was_away = True
        await rounds(found)
        assert found.states["one"] == "in"

    asyncio.run(run())


def test_a_router_alone_decides_for_other_servers(tmp_path: Path) -> None:
    router = PlayedRouter()
    router.pairs = False
    found = servers(tmp_path, router, {"one": "prefill"})
    asyncio.run(rounds(found))
    assert router.told == [{"url": "http://one"}]
    assert found.serve()
    assert "pair" not in (tmp_path / "state").read_text()


def test_a_container_on_the_node_s_network_gets_its_adapters_for_rdma() -> None:
    node = fresh()
    with_rdma = replace(node, nvidia=replace(node.nvidia, rdma=True))
    for where, network, wanted in (
        (with_rdma, "host", True),
        (with_rdma, "bridge", False),
        (node, "host", False),
    ):
        made = plan(where, wishes(CAP | {"network": network}))
        (one,) = made.services
        assert ("--device=/dev/infiniband" in one.decision.docker_arguments) == wanted
