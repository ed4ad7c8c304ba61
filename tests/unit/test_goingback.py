"""Going back to an earlier deployment: what it takes, what refuses it, what is planned again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import Environment, Listener, ManagedFile, Space, Survey, Unknown
from plans import paths
from plans.goingback import Back, go_back
from plans.plan import NodePlan
from plans.switchback import switch_back
from plans.wishes import Wishes
from tests.unit.deployments import (
    CAP,
    applied,
    converged,
    edited,
    fresh,
    kinds,
    one,
    plan,
    with_file,
    with_state,
)
from tests.unit.surveys import wishes
from tests.unit.wheels import KEY, wheel_plan

WANTED = CAP | {"arguments": {"max-running-requests": 8}}


def verified(node: Survey, number: int) -> Survey:
    """Return the survey once the record of a deployment was written."""
    written = {**node.services["chat"].written, f"{number}/record.json": 1796000000}
    return with_state(node, written=written)


def two(wanted: Mapping[str, Any] | None = None) -> Survey:
    """A node on which deployment 2 runs, and 1 ran before; all of both was read."""
    first = verified(converged(), 1)
    made = plan(first, wishes(dict(wanted or WANTED)))
    return verified(verified(applied(made, first), 1), 2)


def back(node: Survey, to: int | None = None) -> Back:
    return go_back(node, node.services["chat"], to)


def codes(found: Back) -> list[str]:
    return [refusal.code for refusal in found.refusals]


def test_going_back_is_two_links_and_a_restart() -> None:
    found = back(two())
    assert (found.current, found.number, found.release) == (2, 1, "0.5.23")
    assert [change.kind for change in found.changes] == ["deployment", "restart"]
    assert not found.refusals
    program = switch_back(found)
    assert 'ln -s "$current" "$deployments/.previous"' in program
    assert 'ln -sfn 2 "$deployments/$number/back"' in program
    assert "number=1\n" in program
    assert "systemctl --no-block restart" in program
    assert "daemon-reload" not in program
    assert '"$current" = 2 ]' in program  # the same guard as any switch's


def test_the_limits_that_it_had_come_back_with_it() -> None:
    node = two(CAP | {"output_cap": 64})
    found = back(node)
    assert [c.kind for c in found.changes] == ["deployment", "drop-in", "daemon-reload", "restart"]
    assert found.drop_in is not None
    assert found.drop_in.text == node.files[f"{paths.DEPLOYMENTS}/chat/1/10-toolkit.conf"].text
    assert found.guard is not None
    assert found.guard.sums == {paths.drop_in("chat"): node.files[paths.drop_in("chat")].sha256}
    assert "systemctl daemon-reload" in switch_back(found)


def test_a_stopped_service_is_started_from_it() -> None:
    node = with_state(two(), active_state="inactive", main_pid=0)
    assert back(node).act == "start"


@pytest.mark.parametrize("to", [7, 2])
def test_one_that_is_not_there_or_runs_already_is_refused_with_those_that_are(to: int) -> None:
    found = back(two(), to)
    assert codes(found) == ["NO_WAY_BACK"]
    assert "1, 2" in found.refusals[0].needed
    assert found.changes == ()


def test_one_that_has_never_answered_is_none_to_go_back_to() -> None:
    node = with_state(two(), written={})
    for to in (1, None):
        found = back(node, to)
        assert codes(found) == ["NO_WAY_BACK"]
        assert "has never answered" in found.refusals[0].seen
    assert not codes(back(with_state(node, written={"1/start.json": 1796000000})))


def test_a_service_without_a_previous_deployment_has_no_way_back() -> None:
    assert codes(back(converged())) == ["NO_WAY_BACK"]


@pytest.mark.parametrize("name", ["server.yaml", "container.env", "launch.env", "ready-gate"])
def test_a_deployment_that_is_not_as_it_was_written_is_refused(name: str) -> None:
    path = paths.Deployment("chat", 1).file(name)
    assert codes(back(with_file(two(), path, edited))) == ["DEPLOYMENT_BROKEN"]
    gone = with_file(two(), path, lambda file: replace(file, exists=False))
    assert codes(back(gone)) == ["DEPLOYMENT_BROKEN"]
    unread = Unknown("unreadable", "input/output error")
    unknown = with_file(two(), path, lambda file: replace(file, sha256=unread))
    assert codes(back(unknown)) == ["DEPLOYMENT_BROKEN"]
    files = {key: file for key, file in two().files.items() if key != path}
    assert codes(back(replace(two(), files=files))) == ["DEPLOYMENT_BROKEN"]


def test_a_plan_that_cannot_be_read_is_refused() -> None:
    path = paths.Deployment("chat", 1).file("plan.json")
    node = with_file(two(), path, lambda file: replace(file, text="{"))
    assert "DEPLOYMENT_BROKEN" in codes(back(node))


def test_what_is_not_on_the_node_is_refused_because_nothing_is_fetched() -> None:
    node = two()
    node = replace(node, docker=replace(node.docker, images=()))
    assert codes(back(node)) == ["ROLLBACK_IMAGE_GONE"]


def test_a_model_that_is_gone_is_refused() -> None:
    commit = "c1" * 20
    model = paths.snapshot(paths.WEIGHTS, "Qwen/Qwen3-8B", commit)
    node = two()
    node = replace(node, spaces={**node.spaces, model: Space(model, False, paths.WEIGHTS)})
    assert codes(back(node)) == ["ROLLBACK_MODEL_GONE"]


def test_a_port_that_another_took_is_refused() -> None:
    node = two(CAP | {"port": 30009})
    node = replace(node, listeners=(Listener("127.0.0.1", 30000, 5, "nginx"),))
    assert codes(back(node)) == ["PORT_TAKEN"]


def test_a_unit_that_was_edited_by_hand_is_not_written_over() -> None:
    node = with_file(two(CAP | {"output_cap": 64}), paths.drop_in("chat"), edited)
    assert codes(back(node)) == ["FILE_EDITED"]


def test_a_driver_of_another_major_version_is_planned_again() -> None:
    node = two()
    node = replace(
        node, nvidia=replace(node.nvidia, driver_version="595.10", module_version="595.10")
    )
    found = back(node)
    assert found.moved == ("the driver was 580 and is 595",)
    assert not found.refusals
    assert found.changes == ()
    assert found.service is not None


def test_gpus_that_are_gone_are_planned_again() -> None:
    node = two()
    gpus = tuple(replace(gpu, uuid="GPU-other") for gpu in node.nvidia.gpus)
    found = back(replace(node, nvidia=replace(node.nvidia, gpus=gpus)))
    assert len(found.moved) == 1
    assert "no GPU of this node now" in found.moved[0]


def test_a_driver_that_cannot_be_read_is_not_taken_for_the_same() -> None:
    node = two()
    unread = Unknown("unreadable", "no answer")
    assert back(replace(node, nvidia=replace(node.nvidia, driver_version=unread))).moved


def test_a_deployment_that_was_left_is_never_written_over() -> None:
    # 1, 2, back to 1: the next is 3, though 2 is neither current nor previous of 1 and 3.
    node = applied(plan(two(), wishes(CAP | {"shm_size": "1g"})), two())
    node = verified(verified(verified(node, 1), 2), 3)
    node = with_state(node, current=1, previous=3)
    node = with_state(node, current=2, previous=1, plan=two().services["chat"].plan)
    assert one(plan(node, wishes(CAP | {"shm_size": "2g"}))).number == 4


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("apply"), st.integers(1, 4)),
            st.tuples(st.just("cut"), st.integers(1, 4)),
            st.tuples(st.just("fail"), st.integers(1, 4)),
            st.tuples(st.just("back"), st.integers(0, 5)),
        ),
        max_size=7,
    )
)
def test_after_any_upgrades_failures_and_ways_back_both_links_can_be_started(
    steps: list[tuple[str, int]],
) -> None:
    node = verified(converged(), 1)
    proved, failed = {1}, set[int]()
    for what, value in steps:
        state = node.services["chat"]
        if what == "back":
            to = value or None
            found = go_back(node, state, to)
            if found.refusals:
                assert codes(found) == ["NO_WAY_BACK"]
                assert to not in proved - {state.current}
                assert to is not None or state.previous not in proved - failed
                continue
            node = switched(node, found)
            continue
        made = plan(node, wanted_with(value))
        service = one(made)
        if "deployment" not in kinds(made):
            continue
        assert service.number not in proved
        if what == "apply":
            after = with_state(applied(made, node), written=state.written)
            node = verified(after, service.number)
            proved.add(service.number)
        elif what == "fail":  # an upgrade that answered, did not stand its soak, and went back
            node = verified(with_state(applied(made, node), written=state.written), service.number)
            proved.add(service.number)
            failed.add(service.number)
            taken_back = go_back(node, node.services["chat"], None)
            if state.current in failed:  # by its number: nothing better was there
                taken_back = go_back(node, node.services["chat"], state.current)
            assert not taken_back.refusals
            node = with_record(switched(node, taken_back), service.number, {"upgrade": "failed"})
            node = with_record(node, taken_back.number, {"rolled_back_from": service.number})
            failed.discard(taken_back.number)
        else:  # written, and cut before the switch
            files = dict(applied(made, node).files)
            own = {p: f for p, f in files.items() if f"/chat/{service.number}/" in p}
            numbers = tuple(sorted({*state.deployments, service.number}))
            node = with_state(replace(node, files={**node.files, **own}), deployments=numbers)
        there = node.services["chat"]
        assert there.current in proved
        for number in (there.current, there.previous):
            if isinstance(number, int) and number != there.current:
                assert not go_back(node, there, number).refusals


def with_record(node: Survey, number: int, record: dict[str, Any]) -> Survey:
    """Return the survey with this record of a deployment."""
    path = paths.Deployment("chat", number).file(paths.RECORD_JSON)
    file = ManagedFile(path, True, "ab", "0644", "root:root", json.dumps(record))
    return replace(node, files={**node.files, path: file})


def wanted_with(value: int) -> Wishes:
    return wishes(CAP | {"arguments": {"max-running-requests": value}})


def switched(node: Survey, found: Back) -> Survey:
    """Return what the survey reads once a way back was gone."""
    files = dict(node.files)
    for file in (found.unit, found.drop_in):
        if file is not None:
            files[file.path] = replace(
                node.files[file.path], sha256=file.sha256, text=file.text, mode=file.mode
            )
    deployment = paths.Deployment("chat", found.number)
    return with_state(
        replace(node, files=files),
        current=found.number,
        previous=found.current,
        plan=files[deployment.file(paths.PLAN_JSON)].text,
    )


def whole(node: Survey) -> Survey:
    """Return the survey of a node with the environment of these tests."""
    made = Environment(f"/opt/sglang/environments/{KEY}", mark="{}", missing=(), changed=())
    return replace(node, environments={KEY: made})


def then(node: Survey, made: NodePlan, number: int) -> Survey:
    """Return the survey once a plan was applied and its deployment was verified."""
    after = applied(made, node)
    for one_of_them in range(1, number + 1):
        after = verified(after, one_of_them)
    return whole(after)


def test_going_back_from_wheel_to_image_takes_the_unit_away_that_stands_in_its_way() -> None:
    first = then(fresh(), plan(), 1)
    found = back(then(first, wheel_plan(first), 2))
    assert codes(found) == []
    assert [change.kind for change in found.changes] == [
        "deployment",
        "drop-in",
        "removed file",
        "daemon-reload",
        "restart",
    ]
    assert found.stop_first
    program = switch_back(found)
    assert f"rm -f -- {paths.wheel_unit('chat')}\n" in program
    assert "--no-reload disable" in program


def test_going_back_from_image_to_wheel_puts_its_units_back() -> None:
    first = then(fresh(), wheel_plan(), 1)
    found = back(then(first, plan(first), 2))
    assert codes(found) == []
    assert paths.wheel_unit("chat") in [file.path for file in found.replaced]
    assert found.stop_first
    program = switch_back(found)
    assert f"{paths.CACHES} {found.launch['SGLANG_KERNELS']} sglang\n" in program


def test_an_environment_that_is_gone_is_no_way_back() -> None:
    first = then(fresh(), wheel_plan(), 1)
    node = then(first, plan(first), 2)
    assert codes(back(replace(node, environments={}))) == ["ROLLBACK_ENVIRONMENT_GONE"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mark": Unknown("absent")}, "is not there any more"),
        ({"missing": ("bin/python3",)}, "no bin/python3 any more"),
        ({"changed": ("+ torch-2.9.0.dist-info",)}, "+ torch-2.9.0.dist-info"),
        ({"missing": Unknown("unreadable")}, "could not be read"),
        ({"changed": Unknown("unreadable")}, "could not be read"),
    ],
)
def test_an_environment_that_is_not_known_to_be_whole_is_no_way_back(
    changes: dict[str, Any], said: str
) -> None:
    first = then(fresh(), wheel_plan(), 1)
    node = then(first, plan(first), 2)
    environments = {KEY: replace(node.environments[KEY], **changes)}
    found = back(replace(node, environments=environments))
    assert codes(found) == ["ROLLBACK_ENVIRONMENT_GONE"]
    assert said in found.refusals[0].seen


def test_a_model_that_could_not_be_looked_at_is_not_taken_to_be_there() -> None:
    node = two()
    found = back(replace(node, spaces={}))
    assert codes(found) == ["ROLLBACK_MODEL_GONE"]
    assert "could not be read" in found.refusals[0].seen


def test_a_link_that_leads_elsewhere_is_no_deployment_as_it_was_written() -> None:
    first = then(fresh(), wheel_plan(), 1)
    node = then(first, plan(first), 2)
    path = paths.Deployment("chat", 1).file(paths.CONFIG)
    moved = with_file(node, path, lambda file: replace(file, link="/tmp/x"))
    assert codes(back(moved)) == ["DEPLOYMENT_BROKEN"]


def test_a_fresh_node_has_nothing_to_go_back_to() -> None:
    assert not fresh().services


def test_one_whose_upgrade_failed_is_gone_back_to_only_by_its_number() -> None:
    node = two()
    record = {"upgrade": "failed", "result": "it ended 20 s into its soak"}
    node = with_record(node, 1, record)
    (refusal,) = back(node).refusals
    assert refusal.code == "NO_WAY_BACK"
    assert "an upgrade to deployment 1 of chat failed: it ended 20 s into its soak" in refusal.seen
    assert not back(node, 1).refusals


# --- after a run that was cut


def cut_before_the_links(node: Survey, wanted: Mapping[str, Any], *, read: bool = True) -> Survey:
    """Return a node whose switch to one more deployment was cut with its drop-in in place."""
    made = plan(node, wishes(dict(wanted)))
    number, after = one(made).number, applied(made, node)
    names = [paths.drop_in("chat")]
    names += [paths.Deployment("chat", number).file(paths.PLAN_JSON)] if read else []
    assert after.files[names[0]] != node.files[names[0]]
    files = {**node.files, **{name: after.files[name] for name in names}}
    numbers = (*node.services["chat"].deployments, number)
    return with_state(replace(node, files=files), deployments=numbers)


def test_a_file_that_a_cut_switch_had_put_in_place_was_edited_by_nobody() -> None:
    other = WANTED | {"output_cap": 64}
    found = back(cut_before_the_links(two(), other))
    assert not found.refusals
    assert [c.kind for c in found.changes] == ["deployment", "drop-in", "daemon-reload", "restart"]
    # Whoever wishes for what ran before gets that, and not the word that they edited a file.
    node = cut_before_the_links(verified(converged(), 1), CAP | {"output_cap": 64})
    made = plan(node, wishes(CAP))
    assert not made.refusals
    assert "drop-in" in kinds(made)
    node = cut_before_the_links(verified(converged(), 1), CAP | {"output_cap": 64}, read=False)
    assert [one.code for one in plan(node, wishes(CAP)).refusals] == ["FILE_EDITED"]


def unended(node: Survey, of: str = "1") -> Survey:
    """Return a node where going back to its current deployment was cut before its record."""
    path = paths.Deployment("chat", 2).file(paths.BACK)
    return replace(node, files={**node.files, path: ManagedFile(path, exists=True, link=of)})


def test_a_way_back_that_was_cut_is_gone_on_with() -> None:
    found = back(unended(two()))
    assert (found.current, found.number, found.came_from, found.act) == (2, 2, 1, "verify")
    assert not found.refusals
    assert 'mv -fT "$deployments/.current"' not in switch_back(found)
    # What still runs is of the one before: the restart had not come.
    runs = with_state(unended(two()), container_deployment=1)
    assert back(runs).act == "restart"
    assert back(with_state(runs, active_state="inactive", main_pid=0)).act == "start"
    assert back(unended(two()), 1).number == 1, "who names another one goes there"


def test_an_upgrade_s_own_way_back_leads_to_the_one_before() -> None:
    node = unended(two())
    found = go_back(node, node.services["chat"], None, goes_on=False)
    assert (found.number, found.came_from) == (1, None)


def test_an_apply_verifies_what_a_cut_way_back_had_not() -> None:
    state = two().services["chat"]
    node = with_state(unended(two()), record='{"result": "ready"}')
    assert node.services["chat"].answer == state.answer
    (service,) = plan(node, wishes(dict(WANTED))).services
    assert service.act == "verify"
