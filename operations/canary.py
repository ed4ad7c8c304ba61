"""Tries the image, or the environment, before anything is stopped."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Program, failing, say_refused
from plans import scripts
from plans.canary import expected, judge
from plans.plan import ServicePlan
from plans.wheel import canary_program
from plans.wheel.canary import expected_wheel, judge_wheel


@operation()
def passed(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Start CUDA in a throw-away container with the flags of the unit, and run a kernel on each GPU.

    + plan: the service's part of the node's plan

    What failed there would have failed the server: the node is refused with its
    code, and whatever served before goes on. A service on the CPU device has its
    packages tried alone. For the wheel runtime it is a throw-away unit that loads the
    environment's packages and compiles, links and loads kernels with empty caches.

    **Example:**

    .. code:: python

        canary.passed(plan, name="Try CUDA in the image of chat")
    """
    of = plan.environment
    made = of is not None and (of.build or of.repair or of.packages)
    if not (plan.new_deployment or plan.pull or made):
        host.noop(f"the image and the flags of {plan.name} are as they were tried")
        return

    def judge_it(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        printed = (*output.stdout_lines, *output.stderr_lines)
        if plan.launch is not None and plan.launch.environment is not None:
            found = judge_wheel(printed, expected_wheel(plan))
        else:
            found = judge(printed, expected(plan))
        outcome_of(host).notes.extend(f"{plan.name}: {note}" for note in found.notes)
        for one in found.refusals:
            say_refused(host, one)
        return not found.refusals

    if plan.launch is not None and plan.launch.environment is not None:
        yield Program(
            canary_program.canary(plan),
            f"try {plan.name}",
            judge=failing(f"the canary of {plan.name} could not be run"),
        )
        yield Program(
            canary_program.canary_result(plan), f"judge {plan.name}", show=False, judge=judge_it
        )
        return
    yield Program(scripts.canary(plan), f"try {plan.name}", show=False, judge=judge_it)
