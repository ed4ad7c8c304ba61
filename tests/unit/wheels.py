"""Plans of the wheel runtime: what is in an environment is given here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from facts.records import Survey
from plans.decision import Decision
from plans.findings import Findings
from plans.make import make_plan
from plans.mirrors import Mirrors
from plans.plan import NodePlan
from plans.wheel.environment import CudaHome, PlannedEnvironment
from plans.wishes import Service, Wishes
from tests.unit.deployments import CAP, VERSION, applied, fresh, lock
from tests.unit.surveys import wishes

KEY = "0123456789abcdef"
TREE = f"/opt/sglang/environments/{KEY}/lib/python3.12/site-packages/nvidia/cu13"


def environment(**changes: Any) -> PlannedEnvironment:
    """Return an environment that is on the node; ``changes`` are of it."""
    base = PlannedEnvironment(
        key=KEY,
        release="0.5.23",
        requirements="sglang==0.5.23 --hash=sha256:00\n",
        size=5_000_000_000,
        python="3.12",
        cuda_home=CudaHome(TREE, "wheels", "CUDA_HOME is the wheels' tree"),
        packages=(),
        mirrors=Mirrors(),
        build=False,
        why="",
    )
    return replace(base, **changes)


def wheel_plan(
    node: Survey | None = None,
    wanted: Wishes | None = None,
    made: PlannedEnvironment | None = None,
    **words: Any,
) -> NodePlan:
    """Return the plan of a node whose services all get the wheel runtime."""
    planned = made or environment()

    def given(
        service: Service,
        wished: Wishes,
        decision: Decision,
        lock: object,
        survey: Survey,
        found: Findings,
    ) -> PlannedEnvironment:
        if planned.build:
            found.change(service.name, "environment", planned.directory, planned.why)
        return planned

    wished = (wanted or wishes(CAP)).model_copy(update={"runtime": "wheel"})
    with patch("plans.make.planned_environment", given):
        return make_plan(node or fresh(), wished, lock(), VERSION, **words)


def wheel_converged(wanted: Wishes | None = None) -> Survey:
    """Return the survey of a node on which a plan of the wheel runtime was applied."""
    return applied(wheel_plan(wanted=wanted))
