"""Switches, restarts, stops and verifies a service."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import logger
from pyinfra.api import operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.outcomes import outcome_of
from operations.remote import Judge, Program, failing, say_failed
from plans import paths, scripts
from plans.ends import traceback_end
from plans.plan import ServicePlan
from plans.verification import Verdict, judge
from plans.wishes import Service
from releases.log_lines import classify, scan
from releases.table import get_release

UNSWITCHED = ("nothing was switched", "the switch is not complete")
"""How the switch's last word begins where no start is to blame."""


@operation()
def switched(plan: ServicePlan) -> Generator[Program, None, None]:
    """
    Make a plan's deployment the current one, start it, and follow it until it is ready.

    + plan: the service's part of the node's plan

    The node first compares what the plan was made from; if one thing moved it
    refuses as ``STALE_PLAN`` and changes nothing. systemd does the rest: a cut
    connection leaves it at work.

    **Example:**

    .. code:: python

        service.switched(plan, name="Start chat from deployment 7")
    """
    writes = plan.new_deployment or plan.unit or plan.drop_in or plan.daemon_reload or plan.enable
    if plan.act in ("none", "verify") and not writes:
        host.noop(f"{plan.name} runs deployment {plan.number}")
        return
    release = plan.decision.release or ""
    yield Program(scripts.switch(plan), f"switch {plan.name}", judge=_judge_act(plan.name, release))


@operation(is_idempotent=False)
def restarted(name_of_service: str, release: str) -> Generator[Program, None, None]:
    """
    Restart a service: requests in flight are finished first.

    + name_of_service: the service
    + release: the release it runs, for what the lines of its log mean

    **Example:**

    .. code:: python

        service.restarted("chat", "0.5.23", name="Restart chat")
    """
    yield _control("restart", "restart", name_of_service, release)


@operation(is_idempotent=False)
def stopped(name_of_service: str, release: str) -> Generator[Program, None, None]:
    """
    Stop a service: requests in flight are finished first.

    + name_of_service: the service
    + release: the release it runs, for what the lines of its log mean

    **Example:**

    .. code:: python

        service.stopped("chat", "0.5.23", name="Stop chat")
    """
    yield _control("stop", "stop", name_of_service, release)


@operation(is_idempotent=False)
def ended(name_of_service: str, release: str) -> Generator[Program, None, None]:
    """
    End a service at once: nothing is waited for, and what is in flight is lost.

    + name_of_service: the service
    + release: the release it runs, for what the lines of its log mean

    **Example:**

    .. code:: python

        service.ended("chat", "0.5.23", name="End chat")
    """
    yield _control("stop-now", "end", name_of_service, release)


@operation(is_idempotent=False)
def verified(
    service: Service,
    release: str,
    number: int,
    record: Mapping[str, Any] | None = None,
    unended: bool = False,
) -> Generator[Program, None, None]:
    """
    Prove that a service answers: one ordinary generation whose text is read.

    + service: what the operator wants of it
    + release: the release it runs
    + number: of its current deployment
    + record: what is kept with the deployment beside what the verify saw; None keeps nothing
    + unended: a way back to it was cut, or did not answer: it has come to its end once this answers

    **Example:**

    .. code:: python

        service.verified(wishes.services[0], "0.5.23", 7, name="Verify chat")
    """

    def judge_it(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        verdict = judge(output.stdout_lines, service, release)
        outcome_of(host).verdicts[service.name] = verdict
        if not verdict.ok:
            logger.error(f"{host.print_prefix}{service.name}: {verdict.sentence}")
        return verdict.ok

    yield Program(
        scripts.verify(service, release, number),
        f"verify {service.name}",
        show=False,
        judge=judge_it,
        lock="keep",
    )
    verdict = outcome_of(host).verdicts.get(service.name)
    if record is not None and verdict is not None:
        yield write_record(service.name, number, record_of(record, verdict))
    elif unended and verdict is not None and verdict.ok:
        yield Program(
            scripts.end_way_back(service.name, number),
            f"end the way back of {service.name}",
            show=False,
            judge=failing(f"the way back of {service.name} could not be ended"),
            lock="keep",
        )


@operation(is_idempotent=False)
def removed(services: tuple[str, ...], take: scripts.Take) -> Generator[Program, None, None]:
    """
    Take services away: drained and stopped first; what is left is named with its size.

    + services: their names
    + take: what is taken away beside what the toolkit put there

    **Example:**

    .. code:: python

        service.removed(("chat",), scripts.Take(), name="Remove chat")
    """
    if not services and take == scripts.Take():
        host.noop("no service of the toolkit is here")
        return

    def keep_output(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        outcome_of(host).said[""] = tuple(output.stdout_lines)
        return failing("it was not removed whole")(state, host, ok, output)

    yield Program(scripts.remove(services, take, paths.CACHES), "remove", judge=keep_output)


def write_record(name_of_service: str, number: int, record: Mapping[str, Any]) -> Program:
    """Return what writes the record of a deployment."""
    return Program(
        scripts.write_record(name_of_service, number, record_text(record)),
        f"record {name_of_service}",
        show=False,
        judge=failing(f"record.json of {name_of_service} could not be written"),
        lock="keep",
    )


def record_text(record: Mapping[str, Any]) -> str:
    """Return a record as its file has it."""
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def record_of(base: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    """Return what is kept with a deployment: what is given, and what its verify saw."""
    return {
        **base,
        "result": verdict.sentence,
        "server_version": verdict.version,
        "first_answer_seconds": verdict.first_answer_seconds,
        "phases": list(verdict.phases),
        "generation_milliseconds": verdict.milliseconds,
        "canary": verdict.canary,
    }


def _control(verb: str, what: str, name_of_service: str, release: str) -> Program:
    return Program(
        scripts.control(verb, name_of_service),
        f"{what} {name_of_service}",
        judge=_judge_act(name_of_service, release),
    )


def _judge_act(service: str, release: str) -> Judge:
    """Return the judge of a program that stops or starts a service."""

    def judge_it(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        lines = tuple(output.stdout_lines)
        outcome_of(host).said[service] = lines
        if not ok:
            why = _why(lines, release)
            if why.startswith(UNSWITCHED):
                reason = [line for line in output.stderr_lines if line.strip()][-1:]
                say_failed(host, ": ".join([service, *reason, why]))
            else:
                say_failed(host, f"{service} did not start: {why}")
        return ok

    return judge_it


def _why(lines: tuple[str, ...], release: str) -> str:
    """Return why a start failed: what is known of its log's lines, and the error it ends with."""
    why, end = _known(lines, release), traceback_end(lines)
    if end is None or end in why or why.startswith(UNSWITCHED):
        return why
    entry = classify(end, get_release(release))
    # A line that may hold a key is shown by its meaning alone.
    if entry is not None and entry.secret:
        return why
    return f"{why.rstrip('.')}. It ended with: {end[:300]}"


def _known(lines: tuple[str, ...], release: str) -> str:
    found = [one.entry for one in scan(lines, get_release(release)) if one.entry.is_fatal]
    if found:
        return f"{found[-1].meaning} {found[-1].advice}"
    for line in reversed(lines):
        if line.startswith("docker: "):
            return line
    for line in lines:
        if line.startswith(("the start has failed", "the server ended", "systemd ", *UNSWITCHED)):
            return line
    return "see the lines above"
