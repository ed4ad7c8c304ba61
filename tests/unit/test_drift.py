"""What somebody else did to a service: named by the status, and by the plan, which says what it
does about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, Listener, LocalImage, Survey, Unknown
from plans import drift, paths
from plans.drift import port_taken_over
from plans.states import drifted
from tests.unit.deployments import (
    CAP,
    CONFIG,
    INDEX,
    MANIFEST,
    PINNED,
    codes,
    converged,
    kinds,
    one,
    plan,
    with_state,
)
from tests.unit.surveys import wishes

OWN = paths.drop_in("chat")
MINE = f"{paths.drop_in_dir('chat')}/50-mine.conf"


def running(**changes: Any) -> Survey:
    """Return the survey of a node as planned whose container is known, but for some changes."""
    seen = {
        "container_deployment": 1,
        "container_image": CONFIG,
        "main_began": 7_000,
        "container_began": 7_150,
        "start_began": 70_000_000,
        "active_began": 130_000_000,
    }
    return with_state(converged(), **{**seen, **changes})


def told(node: Survey) -> list[str]:
    """Return the drift of the service as the status tells it."""
    return drifted(node, node.services["chat"])


def cautions(node: Survey) -> list[str]:
    """Return the codes of what the plan warns of."""
    return [caution.code for caution in plan(node).cautions]


def test_a_service_that_runs_as_deployed_has_no_drift() -> None:
    assert told(running()) == []
    assert plan(running()).converged


@pytest.mark.parametrize("active", ["active", "activating"])
def test_a_run_cut_before_the_restart_is_seen_and_ended_by_the_next_one(active: str) -> None:
    # The link is switched; what runs was started before.
    node = running(current=1, container_deployment=4, active_state=active)
    assert told(node) == ["its container still runs deployment 4, the current one is 1"]
    made = plan(node)
    assert kinds(made) == ["restart"]
    assert made.changes[0].why.startswith("its container still runs deployment 4")
    assert (one(made).number, one(made).new_deployment) == (1, False)


def test_a_run_cut_before_its_verify_is_verified_by_the_next_one() -> None:
    made = plan(running(record=ABSENT))
    assert kinds(made) == ["verify"]
    assert "no record" in made.changes[0].why
    # One that is there and cannot be read is no reason to ask for a generation.
    assert plan(running(record=Unknown("unreadable", "no permission"))).converged


def test_a_container_of_another_image_is_restarted() -> None:
    node = running(container_image="sha256:" + "9" * 64)
    assert told(node) == [
        "its container runs another image (sha256:999999999999…) than its deployment says"
    ]
    assert kinds(plan(node)) == ["restart"]


def test_a_container_that_was_restarted_by_hand_is_restarted_by_systemd() -> None:
    # Its start took 60 s, and its container is a minute and a half younger than its client.
    node = running(container_began=7_000 + 9_000)
    assert told(node) == [
        "its container was restarted by hand, so its log no longer reaches the journal"
    ]
    assert kinds(plan(node)) == ["restart"]


@pytest.mark.parametrize(
    "changes",
    [
        {"container_began": 7_000 + 6_000},
        {"container_began": 90_000, "active_state": "activating", "sub_state": "start-post"},
        {"container_began": 90_000, "active_began": 60_000_000},
        {"container_began": 90_000, "active_began": ABSENT},
        {"container_began": 90_000, "main_began": ABSENT},
        {"container_began": ABSENT},
        {"container_deployment": ABSENT},
        {"container_image": Unknown("malformed", "x")},
    ],
)
def test_what_is_not_known_of_a_container_is_no_reason_to_restart_it(
    changes: dict[str, Any],
) -> None:
    assert "restart" not in kinds(plan(running(**changes)))


def test_a_deleted_image_is_named_and_fetched_and_nothing_restarts() -> None:
    node = running()
    node = replace(node, docker=replace(node.docker, images=()))
    assert told(node) == [f"image deleted: {PINNED}"]
    assert kinds(plan(node)) == ["image"]


@pytest.mark.parametrize("shown", [INDEX, MANIFEST])
def test_an_image_that_is_listed_by_another_digest_is_not_taken_for_deleted(shown: str) -> None:
    node = running()
    images = (LocalImage("lmsysorg/sglang", None, shown, CONFIG),)
    assert told(replace(node, docker=replace(node.docker, images=images))) == []


def test_of_a_silent_docker_no_image_is_said_to_be_deleted() -> None:
    node = running()
    silent = replace(node.docker, images=(), server_version=Unknown("unreadable"))
    assert not any("image" in line for line in told(replace(node, docker=silent)))


def test_a_driver_of_another_branch_is_named_and_gets_kernels_of_its_own() -> None:
    node = running()
    moved = replace(node, nvidia=replace(node.nvidia, driver_version="590.48.01",
                                         module_version="590.48.01"))  # fmt: skip
    assert told(moved) == ["driver changed since the build: 580 to 590"]
    made = plan(moved)
    assert kinds(made)[0] == "deployment"
    assert "kernels were built under driver 580, and it is 590 now" in made.changes[0].why
    assert kinds(made)[-1] == "restart"


def test_a_driver_of_the_same_branch_is_no_drift() -> None:
    node = running()
    moved = replace(node, nvidia=replace(node.nvidia, driver_version="580.126.09",
                                         module_version="580.126.09"))  # fmt: skip
    assert told(moved) == []
    assert plan(moved).converged


@pytest.mark.parametrize("text", ["", "[]", '{"build": 1}', '{"build": {"driver_major": null}}'])
def test_a_plan_that_does_not_say_its_driver_is_no_drift(text: str) -> None:
    state = replace(converged().services["chat"], plan=text)
    assert drift.driver_moved(converged(), state) is None


@pytest.mark.parametrize(
    "path", ["/run/systemd/system/sglang@chat.service", "/etc/systemd/system/sglang@chat.service"]
)
def test_a_unit_in_the_place_of_ours_is_refused_by_its_path(path: str) -> None:
    node = running(fragment_path=path)
    assert told(node) == [f"overridden: {path}"]
    made = plan(node)
    assert codes(made) == ["UNIT_OVERRIDDEN"]
    assert path in made.refusals[0].seen
    assert path in made.refusals[0].advice


def test_our_own_unit_and_a_masked_one_are_not_taken_for_an_override() -> None:
    assert told(running(fragment_path=paths.UNIT)) == []
    masked = running(fragment_path="/etc/systemd/system/sglang@chat.service", load_state="masked")
    assert told(masked) == ["masked"]
    assert codes(plan(masked)) == ["UNIT_MASKED"]


@pytest.mark.parametrize(
    "key",
    [
        "Service.ExecStart", "Service.KillMode", "Service.Type", "Service.TimeoutStopSec",
        "Service.TimeoutStartSec", "Service.Restart", "Service.EnvironmentFile",
        "Service.SuccessExitStatus", "Unit.StartLimitBurst", "Service.TimeoutSec",
        "Service.KillSignal", "Service.User",
    ],
)  # fmt: skip
def test_a_drop_in_that_changes_what_the_toolkit_relies_on_is_named_with_the_directive(
    key: str,
) -> None:
    node = running(drop_ins=(OWN, MINE), drop_in_keys={MINE: ("Service.Nice", key)})
    assert told(node) == [
        "your drop-ins: 50-mine.conf",
        f"50-mine.conf sets {key}, which the toolkit relies on",
    ]
    assert cautions(node) == ["DROP_IN_OVERRIDES"]
    # It is theirs: nothing changes.
    assert plan(node).converged


def test_a_drop_in_that_only_adds_is_kept_without_a_word() -> None:
    adds = ("Service.Nice", "Service.Environment", "Unit.After", "Service.MemoryMax")
    node = running(drop_ins=(OWN, MINE), drop_in_keys={MINE: adds})
    assert told(node) == ["your drop-ins: 50-mine.conf"]
    assert cautions(node) == []


def test_of_a_drop_in_that_cannot_be_read_is_said_that_it_is_unknown() -> None:
    node = running(
        drop_ins=(OWN, MINE), drop_in_keys={MINE: Unknown("unreadable", "no permission")}
    )
    assert "what it changes is unknown" in told(node)[-1]
    assert cautions(node) == ["DROP_IN_OVERRIDES"]


def test_the_directives_that_are_relied_on_come_from_the_templates() -> None:
    assert {"Service.ExecStopPost", "Unit.StartLimitIntervalSec"} <= drift.relied_on()
    assert not drift.ADDED_TO & drift.relied_on()


def test_a_unit_that_systemd_has_not_read_again_is_named() -> None:
    node = running(need_daemon_reload=True)
    assert told(node) == ["needs daemon-reload"]
    assert "NEED_DAEMON_RELOAD" in cautions(node)
    assert kinds(plan(node)) == ["daemon-reload"]


@pytest.mark.parametrize("active", ["active", "activating"])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "*", "::"])
def test_a_port_that_was_taken_over_is_refused_with_who_took_it(active: str, address: str) -> None:
    node = listening(running(active_state=active), Listener(address, 30000, 99, "nginx"))
    assert "port 30000 taken over by nginx" in told(node)
    made = plan(node)
    assert codes(made) == ["PORT_TAKEN"]
    assert "nginx (pid 99)" in made.refusals[0].seen


@pytest.mark.parametrize(
    "listener",
    [
        Listener("127.0.0.1", 30000, 99, "docker-proxy"),
        Listener("127.0.0.1", 30000, ABSENT, ABSENT),
        Listener("127.0.0.1", 30001, 99, "nginx"),
        Listener("10.0.0.5", 30000, 99, "nginx"),
    ],
)
def test_a_listener_that_does_not_take_our_port_is_no_drift(listener: Listener) -> None:
    node = listening(running(), listener)
    assert told(node) == []
    assert plan(node).converged


@pytest.mark.parametrize(("process", "taken"), [("sglang", False), ("nginx", True)])
def test_on_the_host_s_network_the_server_itself_listens(process: str, taken: bool) -> None:
    node = listening(running(), Listener("127.0.0.1", 30000, 99, process))
    launch = {**node.services["chat"].launch, "SGLANG_SCHEDULER_PORT": "22000"}
    state = replace(node.services["chat"], launch=launch)
    assert (port_taken_over(node, state) is not None) == taken


def listening(node: Survey, listener: Listener) -> Survey:
    """Return the survey of a service on loopback, with somebody who listens."""
    launch = {**node.services["chat"].launch, "SGLANG_ADDRESS": "127.0.0.1"}
    return with_state(replace(node, listeners=(listener,)), launch=launch)


def test_a_paused_container_of_an_active_service_is_named() -> None:
    node = running(container_deployment=ABSENT, container_image=ABSENT)
    node = replace(node, docker=replace(node.docker, containers={"sglang-chat": "paused"}))
    assert told(node) == ["its container is paused"]
    assert "CONTAINER_STOPPED" in cautions(node)


def test_a_changed_wish_over_a_cut_run_restarts_once() -> None:
    made = plan(running(current=2, previous=1), wishes(CAP | {"shm_size": "1g"}))
    assert kinds(made).count("restart") == 1
    assert json.dumps(made.as_dict())
