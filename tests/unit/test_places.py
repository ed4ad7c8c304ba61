"""Where a change is written to: refused where it cannot be, and never for a node that is as planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, Space, Survey
from plans import paths
from plans.clock import TOLERATED_S, clock_cautions
from tests.unit.deployments import codes, converged, fresh, plan
from tests.unit.surveys import HOST, wishes

NOW = 1_796_000_000


def with_place(node: Survey, path: str = paths.STATE, **changes: Any) -> Survey:
    """Return the survey with what is known of the file system of a path."""
    space = Space(path, True, path, mount="/var", free_bytes=10**11, read_only=False)
    return replace(node, spaces={**node.spaces, path: replace(space, **changes)})


@pytest.mark.parametrize("path", [paths.STATE, paths.CACHES, paths.WEIGHTS, "/etc/systemd/system"])
def test_a_read_only_place_is_refused_with_its_mount_and_the_command(path: str) -> None:
    made = plan(with_place(fresh(), path, read_only=True))
    assert codes(made) == ["READ_ONLY"]
    assert f"{path} lies on /var" in made.refusals[0].seen
    assert "mount -o remount,rw /var" in made.refusals[0].advice
    assert made.changes == ()


def test_a_full_place_is_refused_with_what_is_free_and_the_command() -> None:
    made = plan(with_place(fresh(), free_bytes=4096))
    assert codes(made) == ["DISK_FULL"]
    assert "free on /var for /var/lib/sglang" in made.refusals[0].seen
    assert "df -h /var" in made.refusals[0].advice


def test_several_places_of_one_mount_are_one_refusal() -> None:
    node = with_place(with_place(fresh(), read_only=True), paths.CACHES, read_only=True)
    assert codes(plan(node)) == ["READ_ONLY"]


def test_a_place_that_is_not_known_or_has_room_refuses_nothing() -> None:
    assert codes(plan(with_place(fresh(), free_bytes=ABSENT, read_only=ABSENT))) == []
    assert codes(plan(with_place(fresh()))) == []


def test_a_node_that_is_as_planned_writes_nothing_and_needs_no_room() -> None:
    node = with_place(converged(), read_only=True, free_bytes=0)
    assert plan(node).converged


def test_the_weights_of_a_model_on_the_node_need_no_place_of_ours() -> None:
    local = wishes({"output_cap": 8192, "model": "/srv/models/qwen"})
    node = with_place(fresh(), paths.WEIGHTS, read_only=True)
    assert codes(plan(node, local)) == []


@pytest.mark.parametrize(
    ("epoch", "words"),
    [
        (NOW - 3 * 86400, "3 days behind"),
        (NOW + 5 * 3600, "5 hours ahead of"),
        (NOW + TOLERATED_S + 60, "6 minutes ahead of"),
        (0, "20787 days behind"),
    ],
)
def test_a_clock_that_is_off_is_said_with_what_follows_and_the_command(
    epoch: int, words: str
) -> None:
    node = replace(fresh(), host=replace(HOST, time_epoch=epoch))
    (caution,) = clock_cautions(node, NOW)
    assert caution.code == "CLOCK_OFF"
    assert words in caution.text
    assert "certificates" in caution.text
    assert "timedatectl" in caution.text


@pytest.mark.parametrize("epoch", [NOW, NOW - TOLERATED_S, NOW + 20, ABSENT])
def test_a_clock_that_is_near_enough_or_not_known_is_no_matter(epoch: Any) -> None:
    node = replace(fresh(), host=replace(HOST, time_epoch=epoch))
    assert clock_cautions(node, NOW) == ()
