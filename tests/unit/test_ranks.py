"""A service over several nodes: its ranks are planned, started and stopped as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from facts.records import Answer, Survey
from plans import paths
from plans.batches import batches
from plans.deployed import all_deployed
from plans.plan import NodePlan
from plans.ranks import alone, together
from plans.scripts import verify
from plans.verification import judge
from plans.wishes import Wishes, WishesError, read_wishes
from tests.unit import deployments
from tests.unit.deployments import CAP, codes, fresh, kinds, one, with_state

NODES = ("gpu-a", "gpu-b")
OVER_TWO: dict[str, Any] = {
    "name": "chat",
    "model": "Qwen/Qwen3-8B",
    "tp_size": 2,
    "nodes": list(NODES),
    "network": "host",
    "arguments": {"dist-init-addr": "10.0.0.1:20000"},
    **CAP,
}


def wishes_of(node: str, **changes: Any) -> Wishes:
    """Return the same data as each of the nodes reads it."""
    return read_wishes({"services": [OVER_TWO | changes]}, node)


def plan_of(node: str, there: Survey | None = None, **changes: Any) -> NodePlan:
    found = deployments.plan(replace(there or fresh(), node=node), wishes_of(node, **changes))
    assert found.node == node
    return found


def applied(node: str) -> Survey:
    """Return what a node is read as on which its rank runs and is ready."""
    seen = replace(deployments.applied(plan_of(node)), node=node)
    return with_state(seen, answer=Answer(200, ("Qwen/Qwen3-8B",) if node == "gpu-a" else ()))


def file_of(of: NodePlan, name: str) -> str:
    return next(file.text for file in one(of).files if file.path.endswith(f"/{name}"))


def test_each_node_runs_its_own_rank_and_all_of_the_data_are_the_same() -> None:
    for rank, node in enumerate(NODES):
        server = yaml.safe_load(file_of(plan_of(node), paths.SERVER_YAML))
        assert (server["nnodes"], server["node-rank"], server["tp-size"]) == (2, rank, 2)
        assert server["dist-init-addr"] == "10.0.0.1:20000"
        assert len(one(plan_of(node)).decision.gpus) == 1  # its part of two


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": ["gpu-a"]}, "write two names or more"),
        ({"nodes": ["gpu-a", "gpu-b", "gpu-a"]}, "each once"),
        ({"nodes": ["gpu-b", "gpu-c"]}, "services[chat].nodes: does not name gpu-a"),
        ({"network": "bridge"}, "write network: 'host'"),
        ({"arguments": {}}, "an address of gpu-a and a free port"),
        ({"arguments": {"dist_init_addr": "a:1", "nnodes": 2}}, "nnodes is worked out"),
        ({"nodes": [], "arguments": {"--node-rank": 1}}, "node-rank is worked out: write nodes"),
        ({"rank": 1}, "rank: is worked out"),
        ({"nodes": [], "rank": 0}, "rank: is worked out"),
    ],
)
def test_data_that_give_no_rank_are_refused_with_what_to_write(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WishesError) as raised:
        wishes_of("gpu-a", **changes)
    (message,) = raised.value.messages
    assert said in message
    assert message.startswith("gpu-a: services[chat]")


def test_a_door_stands_before_servers_of_one_node() -> None:
    with pytest.raises(WishesError, match=r"servers: \['http://gpu-a:30000'\]"):
        read_wishes({"services": [OVER_TWO], "door": {"port": 8000}}, "gpu-a")


def test_a_rank_that_follows_is_ready_by_its_health_and_is_asked_for_no_generation() -> None:
    first, second = (plan_of(node) for node in NODES)
    assert 'SGLANG_READY_PATH="/ready"' in file_of(first, paths.LAUNCH_ENV)
    assert 'SGLANG_READY_PATH="/health"' in file_of(second, paths.LAUNCH_ENV)
    assert 'SGLANG_RANK="1"' in file_of(second, paths.LAUNCH_ENV)
    follows = wishes_of("gpu-b").services[0]
    program = verify(follows, "0.5.23", 1)
    assert "/health" in program
    assert 'POST "$base"' not in program
    shown = ["InvocationID=ab", "NRestarts=0", "ActiveState=active"]
    printed = ["@ before", *(f" {s}" for s in shown), "@ ready", " 200"]
    printed += ["@ answer", "@ after", *(f" {s}" for s in shown), "@ end"]
    verdict = judge(printed, follows, "0.5.23")
    assert (verdict.ok, verdict.sentence) == (True, "ready, as rank 1 of 2 for gpu-a")
    assert not judge(printed, wishes_of("gpu-a").services[0], "0.5.23").ok
    printed[printed.index(" 200")] = " 503"
    assert not judge(printed, follows, "0.5.23").ok


def test_a_rank_that_follows_has_longer_to_stop_than_the_one_that_drains() -> None:
    stops = [plan.launch.limits.stop for node in NODES if (plan := one(plan_of(node))).launch]
    assert stops[1] == stops[0] + 60


def test_a_service_over_two_nodes_converges() -> None:
    plans = together({node: plan_of(node, applied(node)) for node in NODES})
    assert [plan.converged for plan in plans.values()] == [True, True]


def test_where_one_rank_restarts_the_others_do_too() -> None:
    stopped = with_state(applied("gpu-b"), active_state="failed", main_pid=0)
    plans = together(
        {"gpu-a": plan_of("gpu-a", applied("gpu-a")), "gpu-b": plan_of("gpu-b", stopped)}
    )
    assert [one(plan).act for plan in plans.values()] == ["restart", "start"]
    assert kinds(plans["gpu-a"]) == ["restart"]
    assert "the rank on gpu-b starts anew" in plans["gpu-a"].changes[0].why


def test_none_is_changed_where_another_rank_is_not_in_the_run_or_is_refused() -> None:
    (plan,) = together({"gpu-a": plan_of("gpu-a")}).values()
    assert codes(plan) == ["RANKS_APART"]
    assert plan.changes == ()
    assert "gpu-b is not in this run" in plan.refusals[0].seen
    assert "--limit gpu-a,gpu-b" in plan.refusals[0].advice

    bad = plan_of("gpu-b", replace(fresh(), nvidia=replace(fresh().nvidia, driver_version="470.1")))
    assert bad.refusals
    plans = together({"gpu-a": plan_of("gpu-a"), "gpu-b": bad})
    assert codes(plans["gpu-a"]) == ["RANKS_APART"]
    assert "gpu-b is refused" in plans["gpu-a"].refusals[0].seen
    assert plans["gpu-b"] == bad


def test_a_converged_rank_is_planned_alone_as_it_is() -> None:
    (plan,) = together({"gpu-b": plan_of("gpu-b", applied("gpu-b"))}).values()
    assert plan.converged


def test_ranks_of_two_models_are_refused() -> None:
    plans = together({"gpu-a": plan_of("gpu-a"), "gpu-b": plan_of("gpu-b", model="/srv/other")})
    for plan in plans.values():
        assert codes(plan)[-1:] == ["RANKS_APART"]


def test_plans_of_services_of_one_node_stay_as_they_are() -> None:
    plan = deployments.plan()
    assert together({plan.node: plan}) == {plan.node: plan}


def test_no_rank_is_stopped_alone() -> None:
    found = {node: all_deployed(applied(node)) for node in NODES}
    assert alone(found) == {}
    (refusals,) = alone({"gpu-b": found["gpu-b"]}).values()
    assert [one.code for one in refusals] == ["RANKS_APART"]
    assert list(alone({"gpu-a": found["gpu-a"], "gpu-b": {}})) == ["gpu-a"]


def test_the_ranks_of_a_service_are_in_one_batch() -> None:
    nodes = ["a", "b", "c", "d", "e", "f"]
    assert batches(nodes, 1, None, [("a", "d")]) == (("a", "d"), ("b",), ("c",), ("e",), ("f",))
    assert batches(nodes, 3, None, [("e", "b"), ("b", "f"), ("x", "y")])[1] == ("b", "e", "f")
    spread = {"a": 1, "b": 1, "c": 1}
    found = batches(nodes, 4, spread, [("a", "d")])
    assert sorted(node for batch in found for node in batch) == nodes
    for batch in found:
        assert not {"a", "b"} <= set(batch)
        assert ("a" in batch) == ("d" in batch)
