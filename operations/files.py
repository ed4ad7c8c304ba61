"""Writes the deployment directory."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.context import host

from operations.remote import Program, failing
from plans import paths, scripts
from plans.plan import ServicePlan


@operation()
def deployment(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Write the numbered directory that a service is started from.

    + plan: the service's part of the node's plan

    It is written beside its place, each file checked, then renamed: a run that is
    cut leaves no half of it. Nothing runs from it until the switch.

    **Example:**

    .. code:: python

        files.deployment(plan, name="Write deployment 7 of chat")
    """
    if not plan.new_deployment:
        host.noop(f"deployment {plan.number} of {plan.name} is as it should be")
        return
    directory = paths.Deployment(plan.name, plan.number).directory
    yield Program(
        scripts.write_deployment(directory, plan.files),
        f"write {directory}",
        show=False,
        judge=failing(f"{directory} could not be written"),
    )
