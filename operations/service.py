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
from plans.plan import ServicePlan
from plans.verification import Verdict, judge
from plans.wishes import Service
from releases.log_lines import scan
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
    yield Program(
        scripts.control("restart", name_of_service),
        f"restart {name_of_service}",
        judge=_judge_act(name_of_service, release),
    )


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
    yield Program(
        scripts.control("stop", name_of_service),
        f"stop {name_of_service}",
        judge=_judge_act(name_of_service, release),
    )


@operation(is_idempotent=False)
def verified(
    service: Service, release: str, number: int, record: Mapping[str, Any] | None = None
) -> Generator[Program, None, None]:
    """
    Prove that a service answers: one ordinary generation whose text is read.

    + service: what the operator wants of it
    + release: the release it runs
    + number: of its current deployment
    + record: what is kept with the deployment beside what the verify saw; None keeps nothing

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
        text = json.dumps(_record(record, verdict), indent=1, ensure_ascii=False) + "\n"
        yield Program(
            scripts.write_record(service.name, number, text),
            f"record {service.name}",
            show=False,
            judge=failing(f"record.json of {service.name} could not be written"),
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
    if not services:
        host.noop("nothing of the toolkit is here")
        return

    def keep_output(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        outcome_of(host).said[""] = tuple(output.stdout_lines)
        return failing("it was not removed whole")(state, host, ok, output)

    yield Program(scripts.remove(services, take, paths.CACHES), "remove", judge=keep_output)


def _record(base: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    return {
        **base,
        "result": verdict.sentence,
        "server_version": verdict.version,
        "first_answer_seconds": verdict.first_answer_seconds,
        "phases": list(verdict.phases),
        "generation_milliseconds": verdict.milliseconds,
        "canary": verdict.canary,
    }


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
