"""The state of each service in a few words, and what is not as the toolkit left it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, Answer, ServiceState, Unknown
from plans import paths
from plans.deployed import all_deployed, deployed
from plans.states import drifted as drift_of
from plans.states import service_lines, state_word
from plans.text import file_name, one_line, size, survey_lines
from tests.unit.deployments import CAP, converged, edited, fresh, plan, with_file, with_state
from tests.unit.surveys import wishes


def test_a_service_as_planned_is_ready_without_drift() -> None:
    (line,) = service_lines(converged())
    assert (line.state, line.bad, line.drift, line.release) == ("ready", False, (), "0.5.23")
    assert line.cells == ("node", "chat", "0.5.23", "image", "ready", "-", "none")
    assert line.as_dict()["drift"] == []
    assert len(line.HEADER) == len(line.cells)


@pytest.mark.parametrize(
    ("changes", "word", "bad"),
    [
        ({"answer": Answer(503, ())}, "active, not ready (503)", True),
        ({"answer": ABSENT}, "active, not ready (absent)", True),
        (
            {"active_state": "activating", "status_text": "loading weights, 12 s"},
            "starting: loading weights, 12 s",
            False,
        ),
        (
            {"active_state": "activating", "sub_state": "auto-restart", "result": "exit-code"},
            "restarting after a failure: exit-code",
            True,
        ),
        (
            {"active_state": "deactivating"},
            "stopping: requests in flight are finished",
            False,
        ),
        ({"active_state": "failed", "result": "timeout"}, "failed: timeout", True),
        ({"active_state": "inactive"}, "inactive", True),
        ({"active_state": "inactive", "current": ABSENT}, "inactive", False),
        ({"active_state": Unknown("unreadable", "timeout")}, "unreadable (timeout)", True),
    ],
)
def test_a_state_in_words(changes: dict[str, Any], word: str, bad: bool) -> None:
    state = replace(converged().services["chat"], **changes)
    assert state_word(state) == (word, bad)


def drifted(**changes: Any) -> list[str]:
    """Return the drift of a service as planned, but for some changes to its state."""
    node = with_state(converged(), **changes)
    return drift_of(node, node.services["chat"])


def test_each_drift_is_named() -> None:
    assert drifted(unit_file_state="disabled") == ["does not start with the node"]
    assert drifted(unit_file_state="masked") == ["masked"]
    assert drifted(need_daemon_reload=True) == ["needs daemon-reload"]
    assert drifted(restarts=3) == ["restarted 3 times by itself"]
    other = f"{paths.drop_in_dir('chat')}/override.conf"
    assert drifted(drop_ins=(paths.drop_in("chat"), other)) == ["your drop-ins: override.conf"]


def test_an_edited_and_a_missing_file_are_named() -> None:
    path = paths.drop_in("chat")
    node = with_file(converged(), path, edited)
    assert drift_of(node, node.services["chat"]) == [f"edited: {path}"]
    gone = with_file(converged(), path, lambda file: replace(file, exists=False, sha256=ABSENT))
    assert drift_of(gone, gone.services["chat"]) == [f"gone: {path}"]


def test_what_was_deployed_is_read_back_without_its_environment() -> None:
    node = converged(wishes(CAP | {"environment": {"PRIVATE_NOTE": "hf_x"}, "port": 31000}))
    found = all_deployed(node)["chat"]
    assert (found.service.port, found.release, found.number) == (31000, "0.5.23", 1)
    assert found.service.environment == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"service": 1}', '{"service": {}}', "[" * 100_000]
)
def test_a_plan_that_cannot_be_read_is_no_deployment(text: str) -> None:
    state = ServiceState("chat", current=1, deployments=(1,), plan=text)
    assert deployed(state) is None
    assert drift_of(fresh(), state) == []
    # And planning over it works: what was written is not known, so nothing was edited.
    assert plan(with_state(converged(), plan=text)).refusals == ()


def test_sizes_are_written_as_disks_are_sold() -> None:
    assert [size(n) for n in (0, 999, 1000, 15_200_000_000, 2 * 10**15)] == [
        "0 B", "999 B", "1.0 kB", "15.2 GB", "2000.0 TB",
    ]  # fmt: skip


def test_a_node_gives_a_file_name() -> None:
    assert file_name("@fake/l4") == "fake-l4"
    assert file_name("../../etc") == "etc"
    assert file_name("..") == "node"


def test_a_node_in_a_line() -> None:
    assert one_line(fresh()).startswith("node  1 × NVIDIA L4, driver 580.95.05, Ubuntu 24.04.3")
    broken = replace(fresh(), unfinished=("nvidia-smi",))
    assert survey_lines(broken)[-1] == "did not return in time: nvidia-smi"
    assert Unknown("absent").why in one_line(replace(fresh(), systemd_version=ABSENT))
