"""Writes what only root reads on a node: the hub token, and the keys that a server holds."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.context import host

from operations.remote import Program, failing
from plans import paths, scripts
from plans.plan import NodePlan, ServicePlan


@operation()
def hub_token(plan: NodePlan) -> Generator[Program, None, None]:
    """
    Write the hub token of a node for root alone, or take it away.

    + plan: the node's plan

    It travels over standard input and stands in no argument list and no log.

    **Example:**

    .. code:: python

        credentials.hub_token(plan, name="Write the hub token")
    """
    if plan.hub_token is None:
        host.noop("the hub token is as it should be")
        return
    path = paths.credential(paths.HUB_TOKEN)
    yield Program(
        scripts.write_secrets(plan.hub_token) if plan.hub_token else scripts.remove_hub_token(),
        f"{'write' if plan.hub_token else 'remove'} {path}",
        show=False,
        judge=failing(f"{path} could not be written"),
    )


@operation()
def keys(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Write the configuration that holds the keys of a service, for root alone.

    + plan: the service's part of the node's plan

    It belongs to one deployment and does not change: another key is another deployment.

    **Example:**

    .. code:: python

        credentials.keys(plan, name="Write the keys of chat")
    """
    if plan.key_file is None:
        host.noop(f"the keys of {plan.name} are as they should be")
        return
    yield Program(
        scripts.write_secrets((plan.key_file,), plan.name),
        f"write {plan.key_file.path}",
        show=False,
        judge=failing(f"{plan.key_file.path} could not be written"),
    )
