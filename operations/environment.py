"""Makes the environment that a wheel runtime is started from."""

from __future__ import annotations

from collections.abc import Generator
from io import BytesIO
from typing import Any

from paramiko import SSHException
from pyinfra.api import operation
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host
from typing_extensions import override

from operations.outcomes import outcome_of
from operations.remote import Judge, Program, failing, give_back, say_failed, say_refused
from operations.tool_wheels import ToolMissing, fetch_uv
from plans.plan import ServicePlan
from plans.wheel import scripts
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.failures import failure_in


@operation()
def present(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Make the environment of a service while whatever served before still serves.

    + plan: the service's part of the node's plan

    The user of wheel runtimes, packages of the distribution that are missing, uv, a Python with
    its headers, and the locked packages, beside their place and renamed. An environment that is
    not whole is made anew; of one whose links alone are missing only these are made.

    **Example:**

    .. code:: python

        environment.present(plan, name="Make the environment of chat")
    """
    planned = plan.environment
    if planned is None:
        host.noop(f"{plan.name} has no environment of its own")
        return
    if not planned.changes:
        host.noop(f"the environment of {plan.name} is there and whole")
        return
    yield from programs(planned, plan.name, plan.bundle.wheels if plan.bundle else None)


def programs(
    planned: PlannedEnvironment, service: str, bundle: str | None = None
) -> Generator[Program, None, None]:
    """Give the programs that make an environment, in order; none where this run has made it.

    Services with the same packages share one: it is made with the first of them.
    """
    if planned.key in outcome_of(host).environments:
        return
    yield Program(
        scripts.prepare(planned),
        f"prepare the node for the environment of {service}",
        judge=failing(f"the node could not be prepared for the environment of {service}"),
    )
    if planned.build and planned.bring_uv:
        yield Bring(planned.architecture, planned.mirrors.index)
    if planned.build:
        yield Program(
            scripts.build(planned, bundle),
            f"make the environment {planned.key}",
            judge=_judge(service, planned),
        )
    elif planned.repair:
        yield Program(
            scripts.repair(planned),
            f"repair the links of {planned.key}",
            judge=failing(f"the links of {planned.directory} could not be made"),
        )


class Bring(Program):
    """Sends uv to the node, beside its place, and puts it there once it has arrived whole."""

    def __init__(self, architecture: str, index: str | None = None) -> None:
        super().__init__("", "put uv in its place", judge=failing("uv could not be put in place"))
        self.architecture = architecture
        self.index = index

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        try:
            brought = fetch_uv(self.architecture, self.index)
            arguments = {**connector_arguments, **self.connector_arguments}
            sent = host.put_file(
                BytesIO(brought.compressed),
                scripts.brought_tool(),
                print_output=state.print_output,
                print_input=state.print_input,
                **arguments,
            )
        except ToolMissing as error:
            return self._failed(str(error), state, host, connector_arguments)
        except (ConnectError, TimeoutError, OSError, EOFError, SSHException) as error:
            # Raised further it would end the run for every node.
            sentence = f"uv could not be sent to the node ({error or type(error).__name__})"
            return self._failed(sentence, state, host, connector_arguments)
        if not sent:
            sentence = "uv could not be sent to the node"
            return self._failed(sentence, state, host, connector_arguments)
        self.text = scripts.put_tool(brought.sha256)
        return super().execute(state, host, connector_arguments)

    def _failed(
        self, sentence: str, state: State, host: Host, connector_arguments: Any
    ) -> tuple[bool, CommandOutput]:
        say_failed(host, sentence)
        give_back(state, host, connector_arguments)
        return False, CommandOutput([])


def _judge(service: str, planned: PlannedEnvironment) -> Judge:
    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        failure = None if ok else failure_in(output.stdout_lines, service, planned.mirrors)
        if failure is not None:
            say_refused(host, failure)
            return False
        if ok:
            outcome_of(host).environments.add(planned.key)
        return failing(f"the environment of {service} could not be made")(state, host, ok, output)

    return judge
