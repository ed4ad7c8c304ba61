"""Plans that give a service which serves a new build of kernels."""

from __future__ import annotations

from typing import Any

from facts.records import Survey
from plans.plan import ServicePlan
from tests.unit.deployments import CAP, converged, one, plan, with_state
from tests.unit.surveys import wishes
from tests.unit.wheels import environment, wheel_converged, wheel_plan

OLD = "/var/cache/sglang/0123456789abcdef"


def serving(node: Survey | None = None, **changes: Any) -> Survey:
    """Return the survey of a node that serves, with the cache of another build than is planned."""
    node = node or converged()
    settings = {"SGLANG_BUILD": "0123456789abcdef", "SGLANG_KERNELS": OLD}
    launch = {**node.services["chat"].launch, **settings}
    return with_state(node, **{"launch": launch, **changes})


def rebuilt(node: Survey | None = None, **keys: Any) -> ServicePlan:
    """Return the plan of the image runtime; ``keys`` are more of the service."""
    wanted = wishes({**CAP, "shm_size": "1g", **keys})
    return one(plan(node or serving(), wanted))


def rebuilt_wheel(node: Survey | None = None, **keys: Any) -> ServicePlan:
    """Return the plan of the wheel runtime; ``keys`` are of its environment."""
    wanted = wishes({**CAP, "shm_size": "1g"})
    return one(wheel_plan(node or serving(wheel_converged()), wanted, environment(**keys)))
