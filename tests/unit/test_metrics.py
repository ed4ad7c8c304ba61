"""A fleet as metrics for Prometheus."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from facts.records import ABSENT, Answer, Smi
from plans.metrics import metrics
from tests.unit.deployments import converged, fresh, with_state

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (-?[0-9.e+-]+)')


def read(text: str) -> dict[str, float]:
    """Return the samples of a text in the exposition format; anything else in it fails."""
    found = {}
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        found[f"{match[1]}{{{match[2] or ''}}}"] = float(match[3])
    return found


def test_a_service_as_planned_is_ready_without_drift() -> None:
    found = read(metrics([converged()], [], 1000.0))
    service = 'node="node",service="chat"'
    assert found[f"sglang_service_ready{{{service}}}"] == 1
    assert found[f"sglang_service_drift{{{service}}}"] == 0
    assert found["sglang_node_survey_timestamp_seconds{}"] == 1000
    info = next(name for name in found if name.startswith("sglang_service_info"))
    assert 'release="0.5.23",runtime="image"' in info
    assert 'frozen="false"' in info


def test_a_service_that_does_not_answer_is_not_ready() -> None:
    found = read(metrics([with_state(converged(), answer=Answer(503, ()))], [], 1.0))
    assert found['sglang_service_ready{node="node",service="chat"}'] == 0


def test_a_node_that_was_lost_has_that_one_metric() -> None:
    found = read(metrics([], ["gpu-9"], 1.0))
    assert found == {
        "sglang_node_survey_timestamp_seconds{}": 1,
        'sglang_node_surveyed{node="gpu-9"}': 0,
    }


def test_what_a_survey_could_not_read_is_left_out_and_never_nought() -> None:
    survey = fresh()
    blind = replace(survey, nvidia=replace(survey.nvidia, smi=Smi(), module_version=ABSENT))
    found = read(metrics([blind], [], 1.0))
    assert not [name for name in found if name.startswith(("sglang_node_gpus", "sglang_node_reb"))]


def test_libraries_and_module_of_two_versions_need_a_reboot() -> None:
    survey = fresh()
    apart = replace(
        survey,
        nvidia=replace(survey.nvidia, driver_version="580.126.09", module_version="580.95.05"),
    )
    assert read(metrics([apart], [], 1.0))['sglang_node_reboot_needed{node="node"}'] == 1


@given(st.text(), st.floats(0, 1e11))
def test_any_name_gives_a_text_that_can_be_read(name: str, now: float) -> None:
    read(metrics([replace(converged(), node=name)], [name], now))
