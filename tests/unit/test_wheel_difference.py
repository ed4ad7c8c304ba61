"""What changes on a node for the wheel runtime, and when a service goes from one to the other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import Environment, ManagedFile, Survey, Unknown, known
from plans import drift, paths, scripts
from plans.saved import digest
from plans.states import drifted, service_lines
from plans.wheel.launch import wheel_unit_file
from tests.unit.deployments import (
    CAP,
    applied,
    codes,
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
from tests.unit.wheels import KEY, environment, wheel_converged, wheel_plan

UNIT = paths.wheel_unit("chat")
NEW = ["deployment", "unit", "unit", "drop-in", "daemon-reload", "enable", "start"]


def test_a_new_node_gets_everything_and_is_started_last() -> None:
    made = wheel_plan(made=environment(build=True, why="not on the node"))
    assert made.decision == "wheel"
    assert made.image is None
    assert kinds(made) == ["environment", *NEW]
    service = one(made)
    assert (service.number, service.act, service.pull) == (1, "start", None)
    assert [file.path for file in service.replaced] == [
        UNIT,
        paths.DEVICES_UNIT,
        paths.drop_in("chat"),
    ]
    assert service.guard is not None
    assert set(service.guard.sums) == {file.path for file in service.replaced}
    document = made.as_dict()
    assert (document["decision"], document["image"]) == ("wheel", None)
    (shown,) = document["services"]
    assert (shown["image"], shown["environment"]) == (None, KEY)
    json.dumps(document)


def test_a_node_that_is_as_planned_gets_no_change() -> None:
    made = wheel_plan(wheel_converged())
    assert made.converged
    assert (one(made).act, one(made).replaced, one(made).removed) == ("none", (), ())
    assert drifted(wheel_converged(), wheel_converged().services["chat"]) == []
    (line,) = service_lines(wheel_converged())
    assert (line.runtime, line.state) == ("wheel", "ready")


def test_two_services_share_the_unit_of_the_devices_which_is_planned_once() -> None:
    half = CAP | {"gpus": [0], "arguments": {"mem-fraction-static": 0.4}}
    wanted = wishes(half, half)
    made = wheel_plan(wanted=wanted)
    said = [change.what for change in made.changes if change.kind == "unit"]
    assert sorted(said) == sorted(
        {
            paths.DEVICES_UNIT,
            *(f"/etc/systemd/system/sglang@{s.name}.service" for s in wanted.services),
        }
    )
    assert wheel_plan(applied(made), wanted).converged


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ({"arguments": {"mem-fraction-static": 0.7}}, {"server.yaml"}),
        ({"environment": {"NCCL_DEBUG": "INFO"}}, {"service.env"}),
        ({"shm_size": "8g"}, {"10-toolkit.conf"}),
        ({"ulimits": {"nofile": 4096}}, {"10-toolkit.conf"}),
        ({"output_cap": 100}, {"launch.env", "service.env", "10-toolkit.conf"}),
    ],
)
def test_a_wish_that_changes_gives_a_new_deployment_and_one_restart(
    change: dict[str, Any], files: set[str]
) -> None:
    made = wheel_plan(wheel_converged(), wishes(CAP | change))
    drop_in = ["drop-in", "daemon-reload"] if "10-toolkit.conf" in files else []
    assert kinds(made) == ["deployment", *drop_in, "restart"]
    (why,) = [one.why for one in made.changes if one.kind == "deployment"]
    # launch.env never names the limits of the container.
    assert files <= set(why.split(" of the current")[0].split(", ")) | {"launch.env"}
    assert not one(made).stop_first


def test_another_environment_is_another_build_with_caches_of_its_own() -> None:
    other = environment(key="f" * 16, build=True, why="not on the node")
    made = wheel_plan(wheel_converged(), made=other)
    assert kinds(made) == ["environment", "deployment", "restart"]
    before, after = one(wheel_plan()).launch, one(made).launch
    assert before is not None
    assert after is not None
    assert before.cache_directory != after.cache_directory


def test_an_environment_that_is_built_anew_restarts_what_runs_from_it() -> None:
    made = wheel_plan(wheel_converged(), made=environment(build=True, why="torch has changed"))
    assert kinds(made) == ["environment", "restart"]


# --- from one runtime to the other


def test_from_image_to_wheel_the_container_is_stopped_by_its_own_unit() -> None:
    made = wheel_plan(converged())
    assert kinds(made) == ["deployment", "unit", "unit", "drop-in", "daemon-reload", "restart"]
    service = one(made)
    assert service.stop_first
    assert service.other_runtime
    program = scripts.switch(service)
    assert program.index("--no-block stop") < program.index(f"mv -fT {UNIT}.new")
    assert program.index("--no-reload disable") < program.index("--no-reload enable")
    assert wheel_plan(applied(made, converged())).converged


def test_from_wheel_to_image_the_unit_that_stands_in_the_way_is_removed() -> None:
    node = wheel_converged()
    made = plan(node)
    assert kinds(made) == [
        "deployment",
        "unit",
        "drop-in",
        "removed file",
        "daemon-reload",
        "restart",
    ]
    service = one(made)
    assert service.removed == (UNIT,)
    assert service.stop_first
    assert service.guard is not None
    assert service.guard.sums[UNIT] == wheel_unit_file("chat").sha256
    program = scripts.switch(service)
    assert f"step rm -f -- {UNIT}\n" in program
    assert program.index(f"rm -f -- {UNIT}") < program.index("systemctl daemon-reload")
    assert plan(applied(made, node)).converged


def test_there_and_back_again_ends_where_it_began() -> None:
    node = converged()
    for _ in range(2):
        node = applied(wheel_plan(node), node)
        assert wheel_plan(node).converged
        node = applied(plan(node), node)
        assert plan(node).converged
    assert node.services["chat"].current == 5


def test_a_kept_plan_of_one_runtime_is_not_that_of_the_other() -> None:
    assert digest(plan()) != digest(wheel_plan())
    assert digest(wheel_plan()) == digest(wheel_plan())
    assert digest(wheel_plan()) != digest(wheel_plan(made=environment(key="f" * 16)))


# --- what somebody else did


def test_a_run_that_was_cut_before_the_link_moved_is_gone_on_with() -> None:
    # The units are in their places and read; `current` still names the image's deployment.
    node = converged()
    made = wheel_plan(node)
    after = applied(made, node)
    cut = replace(after, services={"chat": replace(node.services["chat"], fragment_path=UNIT)})
    assert wheel_plan(cut).refusals == ()
    assert applied(wheel_plan(cut), cut).services["chat"].current == 2
    # Where the operator then goes back, what the cut run left is taken away.
    assert one(plan(cut)).removed == (UNIT,)


def test_a_unit_that_somebody_else_wrote_there_is_never_taken_for_ours() -> None:
    foreign = ManagedFile(UNIT, True, "e" * 64, "0644", "root:root", "[Service]\n")
    node = replace(converged(), files={**converged().files, UNIT: foreign})
    assert codes(plan(node)) == ["FILE_EDITED"]
    assert codes(wheel_plan(node)) == ["FILE_EDITED"]
    loaded = with_state(node, fragment_path=UNIT)
    assert "UNIT_OVERRIDDEN" in codes(plan(loaded))


def test_a_link_that_was_moved_is_told_of_though_no_checksum_says_so() -> None:
    path = paths.Deployment("chat", 1).file(paths.CONFIG)
    node = with_file(wheel_converged(), path, lambda file: replace(file, link="/tmp/x"))
    assert not known(node.files[path].sha256)
    assert f"edited: {path}" in drifted(node, node.services["chat"])
    assert kinds(wheel_plan(node)) == ["deployment", "restart"]


@pytest.mark.parametrize("path", [UNIT, paths.DEVICES_UNIT, paths.drop_in("chat")])
def test_a_file_that_was_edited_is_refused_until_the_operator_chooses(path: str) -> None:
    node = with_file(wheel_converged(), path, edited)
    assert codes(wheel_plan(node)) == ["FILE_EDITED"]
    made = wheel_plan(node, discard_edits=True)
    assert made.refusals == ()
    assert kinds(made) == [
        "unit" if path.endswith(".service") else "drop-in",
        "daemon-reload",
        "restart",
    ]
    assert f"edited: {path}" in drifted(node, node.services["chat"])
    if path == UNIT:
        assert codes(plan(node)) == ["FILE_EDITED"]
        assert one(plan(node, discard_edits=True)).removed == (UNIT,)


def test_a_link_that_was_changed_gives_a_new_deployment() -> None:
    current = paths.Deployment("chat", 1).file(paths.CACHE)
    node = with_file(wheel_converged(), current, lambda file: replace(file, link="/tmp/x"))
    made = wheel_plan(node)
    assert kinds(made) == ["deployment", "restart"]


def test_what_runs_from_another_deployment_is_restarted() -> None:
    node = with_state(wheel_converged(), main_deployment=7)
    made = wheel_plan(node)
    assert kinds(made) == ["restart"]
    assert "it still runs deployment 7, the current one is 1" in drifted(
        node, node.services["chat"]
    )


def test_a_unit_of_its_own_is_no_drift_of_a_wheel_service() -> None:
    state = wheel_converged().services["chat"]
    assert state.fragment_path == UNIT
    assert drift.overriding_unit(wheel_converged(), state) is None


def test_drop_ins_that_open_a_path_are_the_operator_s() -> None:
    relied = drift.relied_on("wheel")
    assert {"Service.KillMode", "Service.User", "Service.LoadCredential"} <= relied
    assert {"Service.EnvironmentFile", "Service.LimitMEMLOCK"} <= relied
    assert not {"Service.ReadWritePaths", "Service.DeviceAllow"} & relied
    assert "Service.LimitMEMLOCK" not in drift.relied_on("image")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["image", "wheel", "wheel-other", "drop"]), min_size=1, max_size=4))
def test_whatever_the_order_of_runtimes_an_applied_plan_leaves_nothing_to_do(
    steps: list[str],
) -> None:
    node: Survey = fresh()
    for step in steps:
        if step == "drop" and paths.drop_in("chat") in node.files:
            node = replace(
                node, files={k: v for k, v in node.files.items() if k != paths.drop_in("chat")}
            )
            continue
        other = environment(key="f" * 16)

        def make(node: Survey, step: str = step, other: Any = other) -> Any:
            if step == "wheel-other":
                return wheel_plan(node, made=other)
            return wheel_plan(node) if step == "wheel" else plan(node)

        made = make(node)
        assert made.refusals == ()
        node = applied(made, node)
        assert make(node).converged


def told(there: dict[str, Environment], **changes: Any) -> list[str]:
    """Return what the status says of a service, where these environments are on its node."""
    launch = {"SGLANG_RUNTIME": "wheel", "SGLANG_ENVIRONMENT": paths.environment(KEY)}
    base = wheel_converged()
    launch = {**base.services["chat"].launch, **launch}
    node = with_state(replace(base, environments=there, **changes), launch=launch)
    return drifted(node, node.services["chat"])


def test_what_became_of_the_environment_is_named() -> None:
    mark = json.dumps({"key": KEY})
    whole = Environment(paths.environment(KEY), mark, "lib/python3.12/site-packages", (), (), ())
    assert told({KEY: whole}) == []
    # Links are made again in place, and a service that runs does without them.
    assert told({KEY: replace(whole, missing=("cu13/lib64",))}) == []
    at = f"environment {whole.path}"
    assert told({}) == [f"environment gone: {whole.path}"]
    assert told({KEY: replace(whole, changed=("+ idna-9.dist-info",))}) == [
        f"{at} is not whole: its packages were changed: + idna-9.dist-info"
    ]
    assert told({KEY: replace(whole, missing=("bin/python3",))}) == [
        f"{at} is not whole: no bin/python3 any more"
    ]
    # What could not be looked at is no drift.
    assert told({}, environments_unread=Unknown("unreadable", "did not return")) == []
