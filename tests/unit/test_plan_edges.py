"""What a close reading of the plan found, each as it should be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import Gpu, GpuProcess, Listener, ManagedFile
from plans import paths
from plans.make import make_plan
from plans.plan import NodePlan
from plans.wanted import images_wanted
from plans.wishes import WishesError, read_wishes
from tests.unit.deployments import CAP, codes, converged, fresh, kinds, one, plan, with_state
from tests.unit.surveys import gpu, wishes


def cautions(made: NodePlan) -> list[str]:
    """Return the codes of a plan's cautions."""
    return [caution.code for caution in made.cautions]


def test_a_unit_of_somebody_else_is_not_written_over_without_the_operators_word() -> None:
    mine = ManagedFile(paths.UNIT, True, "a" * 64, "0644", "root:root", "[Service]\n")
    node = replace(fresh(), files={paths.UNIT: mine})
    made = plan(node)
    assert codes(made) == ["FILE_EDITED"]
    assert "no deployment says that the toolkit wrote it" in made.refusals[0].seen
    assert codes(plan(node, discard_edits=True)) == []


def test_a_service_that_is_no_longer_in_the_inventory_is_named() -> None:
    made = plan(converged(), wishes({**CAP, "name": "other", "port": 30001}))
    (caution,) = [one for one in made.cautions if one.code == "SERVICE_LEFT"]
    assert "chat is deployed here and is not in the inventory" in caution.text
    assert "--service chat" in caution.text


def holding(index: int, process: str) -> Gpu:
    """Return a GPU on which somebody holds most of the memory."""
    return gpu(
        index,
        uuid=f"GPU-{index}",
        memory_total_mib=23034,
        memory_used_mib=21000,
        processes=(GpuProcess(4000 + index, process, 21000),),
    )


def test_what_our_service_holds_comes_free_on_its_own_gpus_alone() -> None:
    node = converged()
    gpus = (holding(0, "sglang::scheduler"), holding(1, "/home/ann/bin/python3"))
    node = replace(node, nvidia=replace(node.nvidia, gpus=gpus))
    node = with_state(node, plan=json.dumps({"gpus": ["GPU-0"], "service": {}, "files": {}}))
    both = wishes({**CAP, "gpus": [0]}, {**CAP, "name": "two", "port": 30001, "gpus": [1]})
    said = [one.text for one in plan(node, both).cautions if one.code == "GPU_IN_USE"]
    assert len(said) == 1
    assert "GPU 1" in said[0]


@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_what_gives_no_text_needs_no_limit_of_its_length(kind: str) -> None:
    assert codes(plan(wanted=wishes({"kind": kind}))) == []
    assert "UNBOUNDED_STOP" in codes(plan(wanted=wishes({})))


@pytest.mark.parametrize(
    ("address", "taken"),
    [("127.0.0.1", True), ("0.0.0.0", True), ("10.0.0.5", False), ("::1", False)],
)
def test_a_port_is_taken_where_the_addresses_meet(address: str, taken: bool) -> None:
    node = replace(fresh(), listeners=(Listener(address, 30000, 7, "nginx"),))
    assert ("PORT_TAKEN" in codes(plan(node))) == taken


@pytest.mark.parametrize(("share", "good"), [(0.85, True), (85, False), (0, False), (1.0, False)])
def test_a_share_of_memory_is_between_0_and_1(share: float, good: bool) -> None:
    made = plan(wanted=wishes({**CAP, "arguments": {"mem-fraction-static": share}}))
    assert ("ARGUMENT_REFUSED" not in codes(made)) == good


def test_another_loopback_address_is_not_open() -> None:
    assert "OPEN_WITHOUT_KEY" not in cautions(plan(wanted=wishes({**CAP, "address": "127.0.0.2"})))


def test_paths_that_arguments_name_are_seen_by_the_container_and_must_be_there() -> None:
    given = {"lora-paths": ["a=/srv/lora/a"], "chat-template": "/srv/t/x.jinja"}
    made = one(plan(wanted=wishes({**CAP, "arguments": given})))
    launch = next(file for file in made.files if file.path.endswith("launch.env")).text
    for path in ("/srv/lora/a", "/srv/t/x.jinja"):
        assert f"--mount=type=bind,source={path},target={path},readonly" in launch


def test_a_release_that_nobody_knows_keeps_no_other_from_its_lock() -> None:
    assert images_wanted([wishes({**CAP, "release": "9.9.9"}), wishes(CAP)])


@pytest.mark.parametrize(
    "data",
    [
        {"registry": {"mirrors": {"docker.io": "https://user:PASS@mirror"}}},
        {"image": "user:PASS@registry.example/sglang:v1"},
        {"services": [{"name": "chat", "model": "https://user:PASS@hub.example/x"}]},
        {"secrets": "PASS"},
    ],
)
def test_a_password_in_the_wrong_place_is_refused_and_never_repeated(data: dict[str, Any]) -> None:
    base = {"services": [{"name": "chat", "model": "Qwen/Qwen3-8B"}]}
    with pytest.raises(WishesError) as error:
        read_wishes({**base, **data}, "node")
    assert "PASS" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue_wait", float("inf")),
        ("tokens_per_second", 1e-300),
        ("output_cap", 10**400),
        ("tokens_per_second", float("nan")),
    ],
)
def test_a_number_that_makes_no_deadline_is_refused(key: str, value: float) -> None:
    service = {"name": "chat", "model": "Qwen/Qwen3-8B", key: value}
    with pytest.raises(WishesError, match=key):
        read_wishes({"services": [service]}, "node")


def test_a_service_that_starts_and_fails_again_and_again_can_be_mended() -> None:
    node = with_state(converged(), active_state="activating", sub_state="auto-restart")
    made = one(plan(node, wishes({**CAP, "shm_size": "1g"})))
    assert made.act == "restart"
    assert made.guard is not None
    assert not made.guard.steady


def test_a_new_model_moves_nothing_that_systemd_reads() -> None:
    made = plan(
        converged(), wishes({**CAP, "revision": "v2", "arguments": {"quantization": "fp8"}})
    )
    assert "daemon-reload" not in kinds(made)


def test_a_plan_before_its_lock_names_what_is_started() -> None:
    made = make_plan(fresh(), wishes(CAP), None, "0.1.0")
    assert made.changes[-1].what == "sglang@chat.service"
