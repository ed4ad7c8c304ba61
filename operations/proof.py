"""Proves a new deployment harder than ready, watches it, and keeps what a failed one left."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Program, failing, say_failed
from operations.service import record_of, write_record
from plans import proof_scripts
from plans.proving import problems_of
from plans.soaking import soak_problem
from plans.wishes import Service


@operation(is_idempotent=False)
def verified_hard(service: Service, release: str, number: int) -> Generator[Program, None, None]:
    """
    Prove a service harder than ready: eight generations at a time, a stream, a client that
    goes away, a JSON schema, a tool call.

    + service: what the operator wants of it
    + release: the release it runs
    + number: of its current deployment

    **Example:**

    .. code:: python

        proof.verified_hard(wishes.services[0], "0.5.23", 7, name="Prove chat")
    """

    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        problems = problems_of(output.stdout_lines, service)
        if problems:
            say_failed(host, f"{service.name}: {'; '.join(problems)}")
        return not problems

    yield Program(
        proof_scripts.verify_hard(service, release, number),
        f"prove {service.name}",
        show=False,
        judge=judge,
        lock="keep",
    )


@operation(is_idempotent=False)
def soaked(
    service: Service, release: str, number: int, seconds: float
) -> Generator[Program, None, None]:
    """
    Watch a service for so long: no restart, no fatal line, still ready, a generation at the end.

    + service: what the operator wants of it
    + release: the release it runs
    + number: of its current deployment
    + seconds: how long it is watched

    **Example:**

    .. code:: python

        proof.soaked(wishes.services[0], "0.5.23", 7, 60, name="Watch chat for 60 s")
    """

    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        problem = soak_problem(output.stdout_lines, service, release)
        if problem is None:
            outcome_of(host).proved.add(service.name)
        else:
            say_failed(host, f"{service.name}: {problem}")
        return problem is None

    yield Program(
        proof_scripts.soak(service, release, number, seconds),
        f"watch {service.name}",
        show=False,
        judge=judge,
        lock="keep",
    )


@operation(is_idempotent=False)
def recorded(
    service: Service, number: int, record: Mapping[str, Any]
) -> Generator[Program, None, None]:
    """
    Keep with a deployment that it has proved itself: a run that was cut before goes on from there.

    + service: what the operator wants of it
    + number: of its current deployment
    + record: what is kept beside what its verify saw

    **Example:**

    .. code:: python

        proof.recorded(wishes.services[0], 7, {"upgrade": "proved"}, name="Record that")
    """
    verdict = outcome_of(host).verdicts.get(service.name)
    whole = record_of(record, verdict) if verdict is not None else record
    yield write_record(service.name, number, whole)


@operation(is_idempotent=False)
def logs_kept(
    service: str, number: int, invocation_before: str, record: str | None
) -> Generator[Program, None, None]:
    """
    Keep both logs of a change that failed in its deployment's directory, for root alone.

    + service: the service
    + number: of the deployment that failed
    + invocation_before: systemd's name of the run that served before; empty where none did
    + record: text of the record that says so; None leaves what is there

    **Example:**

    .. code:: python

        proof.logs_kept("chat", 7, "", None, name="Keep the logs of chat")
    """
    yield Program(
        proof_scripts.keep_logs(service, number, invocation_before, record),
        f"keep the logs of {service}",
        judge=failing(f"the logs of {service} could not be kept"),
    )
