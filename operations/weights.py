"""Brings a model's weights to the node, and checks that the server can read them."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.remote import Judge, Program, failing, say_failed
from plans import scripts
from plans.plan import ServicePlan
from plans.weights import architecture_failure, failure_in
from plans.wheel import weights as wheel


@operation()
def present(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Fetch a hub model's files and check them, while whatever served before still serves.

    + plan: the service's part of the node's plan

    Files that are there and were found good are not fetched again. Before each start the server's
    own user reads every file, in a container with the flags of the service's unit (without one, as
    the user of the unit): also of a model that is a path on the node.

    **Example:**

    .. code:: python

        weights.present(plan, name="Fetch and check the weights of chat")
    """
    fetch = plan.weights is not None and plan.weights.fetch
    starts = plan.act in ("start", "restart") or plan.new_deployment
    if plan.launch is None or not (fetch or starts):
        host.noop(f"the weights of {plan.name} are there")
        return
    runtime = scripts if plan.environment is None else wheel
    if fetch:
        yield Program(
            runtime.fetch_weights(plan),
            f"fetch the weights of {plan.name}",
            judge=_judge(plan, "could not be fetched"),
        )
    yield Program(
        runtime.check_weights(plan),
        f"check the weights of {plan.name}",
        show=False,
        judge=_judge(plan, "could not be checked"),
    )


def _judge(plan: ServicePlan, could_not: str) -> Judge:
    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        launch = plan.launch
        assert launch is not None
        failure = failure_in(output.stdout_lines)
        if ok and failure is None:
            failure = architecture_failure(
                output.stdout_lines, launch.service, plan.decision.release or "", launch.server
            )
        if failure is not None:
            say_failed(host, f"{plan.name}: {failure}")
            return False
        return failing(f"the weights of {plan.name} {could_not}")(state, host, ok, output)

    return judge
