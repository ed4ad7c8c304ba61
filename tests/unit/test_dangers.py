"""What an operator may write that touches a known defect or danger of a release, in the plan."""

from __future__ import annotations

from typing import Any

import pytest

from plans.plan import NodePlan
from tests.unit.deployments import CAP, codes, fresh, plan
from tests.unit.surveys import wishes


def made(release: str = "0.5.23", **service: Any) -> NodePlan:
    """Return the plan of a service of a release; without a lock, which is no matter here."""
    return plan(fresh(), wishes(CAP | service, release=release), no_lock=True)


def cautions(of: NodePlan, code: str) -> str:
    """Return what a plan says under a code, as one text."""
    return "\n".join(caution.text for caution in of.cautions if caution.code == code)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SGL_FORCE_SHUTDOWN": "1"}, "client still streams"),
        ({"FLASHINFER_DISABLE_VERSION_CHECK": "1"}, "loaded unchecked"),
    ],
)
def test_a_variable_that_does_harm_is_refused(environment: dict[str, str], says: str) -> None:
    of = made(environment=environment)
    assert codes(of) == ["ENVIRONMENT_REFUSED"]
    assert says in of.refusals[0].seen
    assert next(iter(environment)) in of.refusals[0].seen
    assert of.refusals[0].advice


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SGLANG_FORCE_SHUTDOWN": "1"}, "read nowhere"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "many times slower"),
        ({"SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}, "no longer checks"),
        ({"NVIDIA_DISABLE_REQUIRE": "1"}, "driver check is skipped"),
    ],
)
def test_a_variable_that_is_risky_or_useless_is_warned_of(
    environment: dict[str, str], says: str
) -> None:
    of = made(environment=environment)
    assert codes(of) == []
    assert says in cautions(of, "ENVIRONMENT_RISK")


@pytest.mark.parametrize(
    ("release", "arguments", "says"),
    [
        ("0.5.19", {"speculative-algorithm": "EAGLE"}, "speculative decoding of a hybrid model"),
        ("0.5.23", {"max-total-tokens": 16383}, "a pool of fewer tokens than one prefill batch"),
        ("0.5.23", {"skip-server-warmup": True}, "says ready before it has generated anything"),
        (
            "0.5.23",
            {"max-queued-requests": 9, "disaggregation-mode": "prefill"},
            "max-queued-requests is ignored",
        ),
    ],
)
def test_arguments_that_touch_a_defect_are_warned_of_with_the_way_around(
    release: str, arguments: dict[str, Any], says: str
) -> None:
    told = cautions(made(release, arguments=arguments), "KNOWN_DEFECT")
    assert says in told
    assert f"SGLang {release}: " in told


@pytest.mark.parametrize(
    ("release", "arguments"),
    [
        ("0.5.23", {"speculative-algorithm": "EAGLE"}),
        ("0.5.23", {"max-total-tokens": 16384}),
        ("0.5.23", {"max-queued-requests": 9}),
    ],
)
def test_arguments_that_touch_no_defect_of_that_release_are_not(
    release: str, arguments: dict[str, Any]
) -> None:
    assert cautions(made(release, arguments=arguments), "KNOWN_DEFECT") == ""
