"""systemd reloads only where a unit changed, and never takes anybody's GPUs without a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, GpuContainer, Survey, Unknown, known
from plans import paths, scripts
from plans.ours import ours_on
from plans.plan import NodePlan
from plans.reload import endangered, what_reload_does
from tests.unit.deployments import (
    CAP,
    VERSION,
    applied,
    codes,
    converged,
    fresh,
    kinds,
    lock,
    one,
    plan,
    with_state,
)
from tests.unit.surveys import gpu, wishes

OTHER = GpuContainer("1", "other", "vllm/vllm-openai:latest", "legacy")
OURS = GpuContainer("2", "sglang-chat", "lmsysorg/sglang", "legacy")
LIMIT = CAP | {"start_limit": 7200.0}  # changes the drop-in


def holding(node: Survey, *containers: GpuContainer, **docker: Any) -> Survey:
    """Return the survey of a node on which these containers use GPUs."""
    return replace(node, docker=replace(node.docker, gpu_containers=containers, **docker))


def allowed(node: Survey, **wanted: Any) -> NodePlan:
    """Return the plan where the operator gave the word."""
    return plan(node, wishes(LIMIT, **{"allow_daemon_reload": True, **wanted}))


@pytest.mark.parametrize(
    ("container", "docker", "lost"),
    [
        ({}, {}, True),
        ({}, {"cgroup_driver": "cgroupfs"}, False),
        ({}, {"cgroup_driver": Unknown("unreadable")}, True),
        ({"mode": "cdi"}, {}, False),
        ({"mode": "devices"}, {}, False),
        ({"mode": "runtime"}, {"nvidia_ctk_version": "1.17.8"}, True),
        ({"mode": "runtime"}, {"nvidia_ctk_version": "1.18.1"}, False),
        ({"mode": "runtime"}, {"nvidia_runtime_mode": "legacy"}, True),
        ({"mode": "runtime"}, {"nvidia_runtime_mode": "csv"}, False),
        ({"mode": "runtime"}, {"nvidia_ctk_version": ABSENT}, True),
    ],
)
def test_which_containers_lose_their_gpus_by_a_reload(
    container: dict[str, Any], docker: dict[str, Any], lost: bool
) -> None:
    node = holding(fresh(), replace(OTHER, **container), **docker)
    lost_there = endangered(node)
    assert known(lost_there)
    assert [one.name for one in lost_there] == (["other"] if lost else [])


def test_a_changed_limit_is_refused_where_another_container_would_lose_its_gpus() -> None:
    made = plan(holding(converged(), OTHER), wishes(LIMIT))
    assert codes(made) == ["LEGACY_GPU_CONTAINERS"]
    (refusal,) = made.refusals
    assert "other (vllm/vllm-openai:latest)" in refusal.seen
    assert "--allow-daemon-reload" in refusal.advice
    assert "docker restart other" in refusal.advice
    assert made.changes == ()


def test_with_the_operators_word_it_is_done_and_said() -> None:
    made = allowed(holding(converged(), OTHER))
    assert codes(made) == []
    assert "daemon-reload" in kinds(made)
    (caution,) = [c for c in made.cautions if c.code == "LEGACY_GPU_CONTAINERS"]
    assert "other (vllm/vllm-openai:latest)" in caution.text
    assert not one(made).stop_first


@pytest.mark.parametrize(
    "node",
    [
        fresh(),
        with_state(converged(), need_daemon_reload=True),
        with_state(converged(), unit_file_state="disabled"),  # to enable it reloads too
    ],
)
def test_every_cause_of_a_reload_is_guarded(node: Survey) -> None:
    assert codes(plan(holding(node, OTHER))) == ["LEGACY_GPU_CONTAINERS"]


def test_what_changes_no_unit_reloads_nothing_and_asks_for_no_word() -> None:
    node = holding(converged(), OTHER, OURS)
    made = plan(node, wishes(CAP | {"shm_size": "1g"}))
    assert codes(made) == []
    assert kinds(made) == ["deployment", "restart"]
    assert not one(made).stop_first
    assert "daemon-reload" not in scripts.switch(one(made))
    assert plan(node).converged


def test_our_own_service_in_the_legacy_mode_is_stopped_before_the_reload() -> None:
    made = plan(holding(converged(), OURS), wishes(LIMIT))
    assert codes(made) == []
    assert one(made).stop_first
    assert "drained and stopped before it" in made.changes[-2].why
    program = scripts.switch(one(made))
    places = [
        program.index(text)
        for text in (
            "install -m",
            'systemctl --no-block stop "$unit"',
            '|| follow_stop "$unit" "$run" "$pid"',
            "mv -fT /etc/systemd/system",
            "mv -fT \"$deployments/.current\"",
            "systemctl daemon-reload",
            'systemctl --no-block start "$unit"',
        )
    ]  # fmt: skip
    assert places == sorted(places)
    assert "--no-block restart" not in program


def test_our_own_service_that_would_only_lose_its_gpus_is_restarted() -> None:
    node = holding(with_state(converged(), need_daemon_reload=True), OURS)
    made = plan(node)
    assert kinds(made) == ["daemon-reload", "restart"]
    assert "legacy mode" in made.changes[-1].why
    assert one(made).stop_first


def test_our_own_service_with_cdi_is_not_stopped_before_its_restart() -> None:
    made = plan(holding(converged(), replace(OURS, mode="cdi")), wishes(LIMIT))
    assert not one(made).stop_first
    program = scripts.switch(one(made))
    assert "--no-block stop" not in program
    assert program.index("systemctl daemon-reload") < program.index("--no-block restart")


def test_another_service_of_ours_that_would_lose_its_gpus_is_named_with_its_restart() -> None:
    share: dict[str, Any] = {"gpus": [0], "arguments": {"mem-fraction-static": 0.4}}
    wanted = wishes(CAP | share, CAP | share)
    node = holding(applied(plan(wanted=wanted)), replace(OURS, name="sglang-chat1"))
    changed = wishes(LIMIT | share, CAP | share)
    made = plan(node, changed)
    assert codes(made) == ["LEGACY_GPU_CONTAINERS"]
    assert "our service chat1" in made.refusals[0].seen
    assert "sglang-node restart --service chat1" in made.refusals[0].advice


def test_what_is_stopped_on_purpose_is_not_counted() -> None:
    node = holding(converged(), OURS)
    assert what_reload_does(node, None, ("chat",)) is None
    assert what_reload_does(node, None) is not None


def test_containers_that_docker_did_not_name_are_not_taken_for_none() -> None:
    silent = Unknown("unreadable", "did not return in time")
    node = converged()
    node = replace(node, docker=replace(node.docker, gpu_containers=silent))
    assert plan(node).converged
    made = plan(node, wishes(LIMIT))
    assert codes(made) == ["LEGACY_GPU_CONTAINERS"]
    assert "did not return in time" in made.refusals[0].seen
    assert one(allowed(node)).stop_first


def test_the_word_of_the_command_line_counts_as_that_of_the_inventory() -> None:
    from plans.make import make_plan

    node = holding(converged(), OTHER)
    made = make_plan(node, wishes(LIMIT), lock(), VERSION, allow_daemon_reload=True)
    assert codes(made) == []


def test_what_a_killed_run_still_compiles_is_not_guarded_and_no_server_of_ours() -> None:
    left = replace(OTHER, name=paths.ahead_of("chat"), image="lmsysorg/sglang")
    running = {"containers": {left.name: "running"}}
    node = holding(converged(), left, **running)
    assert codes(plan(node, wishes(LIMIT))) == []
    assert endangered(node) == ()
    # It does not hide who else has a GPU.
    bare = holding(fresh(), left, **running)
    assert not ours_on(bare, gpu())
    assert ours_on(holding(fresh(), containers={"sglang-old": "running"}), gpu())
