"""Ranks of one service on several nodes, in a run: planned as one, and none stopped alone."""

from __future__ import annotations

from collections.abc import Callable

from pyinfra.api.host import Host

from cli.context import Run
from cli.session import Session
from deploys.node import refuse, survey_of
from facts.records import Survey
from plans.deployed import Deployed, all_deployed
from plans.plan import NodePlan
from plans.ranks import alone, together


def as_one(plans: dict[Host, NodePlan]) -> dict[Host, NodePlan]:
    """Return the plans of nodes with what follows from the ranks that they run."""
    found = together({host.name: plan for host, plan in plans.items()})
    return {host: found[host.name] for host in plans}


def refuse_alone(
    run: Run,
    nodes: Session,
    only: tuple[str, ...],
    *,
    running: bool = False,
    survey: Callable[[Host], Survey | None] = lambda host: survey_of(host, None),
) -> None:
    """Refuse each node whose services would be stopped while other ranks of them run on.

    ``running``: one that does not run is not stopped. ``survey`` reads a node, and that once in a
    run: whoever needs more of it than what is deployed gives how.
    """

    def stopped(host: Host) -> dict[str, Deployed] | None:
        found = survey(host)
        if found is None:
            return None
        return {
            name: one
            for name, one in all_deployed(found).items()
            if (not only or name in only)
            and not (running and one.state.active_state in ("inactive", "failed"))
        }

    there = run.gather(nodes.prepare(stopped))
    said = alone({host.name: found for host, found in there.items()})
    if said:
        nodes.prepare(lambda host: refuse(host, said[host.name]) if host.name in said else None)
