"""Brings the image to the node, by its digest."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.context import host

from operations.remote import Program, failing
from plans import scripts
from plans.plan import ServicePlan


@operation()
def present(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Fetch the image of a service while whatever served before still serves.

    + plan: the service's part of the node's plan

    What is in Docker's store already is not fetched again, and no tag is asked.

    **Example:**

    .. code:: python

        image.present(plan, name="Fetch the image of chat")
    """
    if plan.pull is None:
        host.noop(f"the image of {plan.name} is in Docker's store")
        return
    yield Program(
        scripts.pull(plan.pull),
        f"pull {plan.pull}",
        judge=failing(f"{plan.pull} could not be fetched"),
    )
