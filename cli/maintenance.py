"""The command that drains nodes for a reboot, and what others say of a node in maintenance."""

from __future__ import annotations

from typing import Any

import click
from pyinfra.api.host import Host

from cli.context import Run, outcome_document
from cli.exits import Exit
from cli.options import COMMON, with_run
from cli.ranks import refuse_alone
from deploys.maintenance import call_off as call_off_on
from deploys.maintenance import drain_node
from facts.records import Survey
from plans.maintenance import MarkError, mark_of, sentence, steps


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["reboot"]),
    default="reboot",
    show_default=True,
    help="What for: the services come back with the node.",
)
@click.option("--call-off", is_flag=True, help="Take the mark away, and stop nothing.")
@with_run
def drain(run: Run, only: tuple[str, ...], purpose: str, call_off: bool) -> None:
    """Stop the services of nodes for a reboot: requests in flight are finished first; then verify."""

    def register(host: Host) -> None:
        if call_off:
            call_off_on(host)
        else:
            drain_node(host, only)

    with run.nodes(__file__) as nodes:
        if not call_off:
            refuse_alone(run, nodes, only)
        run.gather(nodes.prepare(register))
        nodes.execute(run.step)
        for host in nodes.hosts:
            if nodes.connect_error(host) is not None or any(
                d["node"] == host.name for d in run.documents
            ):
                continue
            outcome = run.judged(host)
            run.documents.append(outcome_document(host.name, outcome))
            if not outcome.failures and not outcome.refusals:
                said = "no longer marked as drained"
                if not call_off:
                    said = f"drained: {purpose} it, then: sglang-node verify {run.target}"
                run.out.print(f"{host.name}  {said}", markup=False, soft_wrap=True)
    run.finish()


def maintenance_document(run: Run, survey: Survey) -> dict[str, Any]:
    """Say of a node in maintenance what is still missing; return it as it stands in documents."""
    try:
        mark = mark_of(survey)
    except MarkError as error:
        run.exits.append(Exit.FAILED)
        run.out.print(f"{survey.node}  {error}", markup=False, soft_wrap=True)
        return {"maintenance": {"error": str(error)}}
    if mark is None:
        return {}
    found = steps(survey, mark)
    run.out.print(f"{survey.node}  {sentence(mark)}", markup=False, soft_wrap=True)
    for one in found:
        sign = "+" if one.ok else "-"
        run.out.print(f"  {sign} {one.what}: {one.seen}", markup=False, soft_wrap=True)
    return {
        "maintenance": {
            "for": mark.purpose,
            "services": list(mark.services),
            "steps": [one.as_dict() for one in found],
        }
    }
