"""Compiles kernels for a new build while the server of the one before still serves."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Program
from plans import ahead_program
from plans.ahead_program import came_of
from plans.plan import ServicePlan


@operation()
def compiled(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Compile kernels into the cache of a plan's build, by its own tools, while the old one serves.

    + plan: the service's part of the node's plan

    It takes little of the processors and no GPU that serves. What fails, or is not done in time,
    is compiled at the first start: it is told in a sentence, and the apply goes on.

    **Example:**

    .. code:: python

        ahead.compiled(plan, name="Compile kernels of chat while it serves")
    """
    if plan.ahead is None or not plan.ahead.acts:
        host.noop(f"the kernels of {plan.name} stay, or none can be compiled before its switch")
        return

    def tell(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        printed = (*output.stdout_lines, *output.stderr_lines)
        left = came_of(printed)
        if left is not None:
            outcome_of(host).notes.append(f"{plan.name}: {left}")
        return True  # whatever came of it

    programs = [ahead_program.flashinfer(plan)] if plan.ahead.before else []
    programs += [ahead_program.deep_gemm(plan)] if plan.ahead.deep_gemm else []
    for program in programs:
        yield Program(program, f"compile {plan.name}", judge=lambda *_: True)
        yield Program(
            ahead_program.result(plan), f"judge compiling {plan.name}", show=False, judge=tell
        )
