"""Maintenance of a node: what its mark says, and what must be so before it is back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, ManagedFile, Survey
from plans import paths
from plans.loss import loss, open_connections
from plans.maintenance import (
    Mark,
    MarkError,
    maintenance_cautions,
    mark_of,
    new_mark,
    steps,
    write_mark,
)
from tests.unit.deployments import converged, with_state
from tests.unit.surveys import gpu


def node(boot: str = "boot-1", **nvidia: Any) -> Survey:
    base = converged()
    return replace(
        base,
        host=replace(base.host, boot_id=boot, time_epoch=1796000000),
        nvidia=replace(base.nvidia, **nvidia),
    )


def marked(survey: Survey, mark: Mark | str) -> Survey:
    text = mark if isinstance(mark, str) else mark.text()
    file = ManagedFile(paths.MAINTENANCE, True, text=text)
    return replace(survey, files={**survey.files, paths.MAINTENANCE: file})


MARK = new_mark(node(), ("chat",))


def wrong(survey: Survey) -> dict[str, str]:
    return {one.what: one.seen for one in steps(survey, MARK) if not one.ok}


def test_the_mark_comes_back_as_it_was_written() -> None:
    assert mark_of(marked(node(), MARK)) == MARK
    assert MARK.services == ("chat",)
    assert MARK.driver == "580.95.05"
    assert len(MARK.gpus) == 1
    assert mark_of(node()) is None
    assert json.loads(MARK.text())["boot_id"] == "boot-1"
    assert "base64 -d" in write_mark(MARK)


def test_a_second_drain_of_the_same_boot_adds_to_the_first() -> None:
    again = new_mark(marked(node(), replace(MARK, since=5)), ("embed",))
    assert again.services == ("chat", "embed")
    assert again.since == 5
    assert new_mark(marked(node("boot-2"), MARK), ("embed",)).services == ("embed",)


def test_before_the_boot_that_alone_is_missing() -> None:
    assert wrong(node()) == {"booted anew": "not since it was drained"}
    assert wrong(node("boot-2")) == {}


def test_a_boot_that_cannot_be_told_is_none() -> None:
    base = node()
    unread = replace(base, host=replace(base.host, boot_id=ABSENT))
    assert "booted anew" in wrong(unread)
    with pytest.raises(MarkError):
        new_mark(unread, ("chat",))


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        ({"driver_version": "580.126.09"}, "driver and libraries", "kernel module 580.95.05"),
        ({"gpus": (gpu(recovery_action="Reset"),)}, "GPUs", "Reset"),
        ({"gpus": (gpu(1),)}, "GPUs", "is not there any more"),
        ({"gpus": (gpu(fabric_state="In Progress"),), "nvswitch": True}, "fabric", "In Progress"),
    ],
)
def test_a_node_that_is_not_well_is_not_back(change: dict[str, Any], what: str, said: str) -> None:
    assert said in wrong(node("boot-2", **change))[what]


def test_a_driver_that_was_changed_is_told_and_is_no_fault() -> None:
    new = node("boot-2", driver_version="580.126.09", module_version="580.126.09")
    assert wrong(new) == {}
    (driver,) = (one for one in steps(new, MARK) if one.what == "driver and libraries")
    assert driver.seen == "580.126.09, it was 580.95.05"


def test_each_service_that_was_drained_must_be_ready() -> None:
    stopped = with_state(node("boot-2"), active_state="inactive", main_pid=0)
    assert wrong(stopped) == {"chat": "inactive"}
    assert wrong(replace(node("boot-2"), services={})) == {"chat": "gone"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", '{"purpose": 1, "boot_id": 2, "since": "x"}']
)
def test_a_mark_that_cannot_be_read_is_said_and_never_taken_for_none(text: str) -> None:
    with pytest.raises(MarkError):
        mark_of(marked(node(), text))
    (caution,) = maintenance_cautions(marked(node(), text))
    assert "--call-off" in caution.text
    # A new drain writes a new one.
    assert new_mark(marked(node(), text), ("chat",)).services == ("chat",)


def test_who_plans_for_a_node_in_maintenance_is_told() -> None:
    (caution,) = maintenance_cautions(marked(node(), MARK))
    assert caution.code == "IN_MAINTENANCE"
    assert "drained for a reboot since 2026-11-30T00:53:20Z: chat" in caution.text
    assert maintenance_cautions(node()) == ()


def test_what_a_stop_at_once_loses_is_counted() -> None:
    assert open_connections(["x", "@open 3"]) == 3
    assert open_connections(["@open none"]) == "none"
    assert open_connections([]) == "unknown"
    assert loss({"a": 3, "b": 0, "c": "none", "d": "unknown", "e": 1}) == [
        "a: 3 connections open: every answer in flight on them is lost",
        "b: no connection is open; nothing is in flight now",
        "d: how many connections are open is not known: every answer in flight is lost",
        "e: 1 connection open: every answer in flight on them is lost",
    ]
