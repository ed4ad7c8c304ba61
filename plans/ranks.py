"""A service over several nodes: its ranks start and stop together, and rank 0 alone answers.

SGLang's other ranks only log SIGTERM and end once rank 0 has drained and told them
(srt/entrypoints/engine.py): so all of them are stopped at the same time, and none alone. What they
serve on their port is a small server that knows ``/health`` and nothing else (srt/utils/common.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from plans import paths
from plans.deployed import Deployed
from plans.plan import Change, NodePlan, ServicePlan
from plans.refusals import Refusal
from plans.wishes import Service

MOVES = ("start", "restart")
"""Acts that take all ranks with them: a rank that is started never joins others that run."""

Ranks = tuple[str, tuple[str, ...]]
"""A service over several nodes: its name, and the nodes with rank 0's first."""


def ranks_of(service: Service) -> Ranks | None:
    """Return which ranks a service is one of; None where it is of one node alone."""
    return (service.name, service.nodes) if service.nodes else None


def together(plans: Mapping[str, NodePlan]) -> dict[str, NodePlan]:
    """Return the plans of nodes, by name, with what follows from their ranks.

    Where one rank starts or restarts, those that run restart too. Where a rank that would have to
    is not in this run, or is refused, no other one is changed.
    """
    found = dict(plans)
    for (name, nodes), members in _groups(plans).items():
        if not any(one.act in MOVES for one in members.values()):
            continue
        lacking = [node for node in nodes if node not in plans]
        refused = [
            node
            for node in nodes
            if node in plans
            and (node not in members or plans[node].refusals or plans[node].unresolved)
        ]
        apart = _apart(members)
        for node, one in members.items():
            plan = found[node]
            if lacking or refused:
                if node not in refused:
                    found[node] = _refused(plan, _without(name, nodes, lacking, refused))
            elif apart:
                found[node] = _refused(plan, _unlike(name, nodes, apart))
            elif one.act not in MOVES:
                moved = next(n for n in nodes if members[n].act in MOVES)
                found[node] = _moved(plan, one, moved)
    return found


def _groups(plans: Mapping[str, NodePlan]) -> dict[Ranks, dict[str, ServicePlan]]:
    found: dict[Ranks, dict[str, ServicePlan]] = {}
    for node, plan in plans.items():
        for one in plan.services:
            ranks = ranks_of(one.service) if one.service else None
            if ranks is not None:
                found.setdefault(ranks, {})[node] = one
    return found


def _apart(members: Mapping[str, ServicePlan]) -> str | None:
    """Return in what ranks differ that must not, in words; None where they are of one kind."""
    for what, values in (
        ("releases", {one.decision.release for one in members.values()}),
        ("models", {one.service.model for one in members.values() if one.service}),
        ("tp_size", {one.service.tp_size for one in members.values() if one.service}),
    ):
        if len(values) > 1:
            return f"{what} {' and '.join(sorted(map(str, values)))}"
    return None


def _moved(plan: NodePlan, one: ServicePlan, other: str) -> NodePlan:
    why = f"the rank on {other} starts anew, and they run as one; requests in flight are finished first"
    change = Change("restart", paths.unit_of(one.name), why, one.name)
    kept = [c for c in plan.changes if not (c.service == one.name and c.kind == "verify")]
    services = tuple(
        replace(s, act="restart", ready=False) if s.name == one.name else s for s in plan.services
    )
    return replace(plan, services=services, changes=(*kept, change))


def _refused(plan: NodePlan, refusal: Refusal) -> NodePlan:
    return replace(plan, decision="refused", refusals=(*plan.refusals, refusal), changes=())


def _unlike(name: str, nodes: Collection[str], seen: str) -> Refusal:
    return Refusal(
        "RANKS_APART",
        f"the ranks of {name} on {', '.join(nodes)} would have {seen}",
        "one release, model and tp_size for all of them",
        f"give {name} the same data on {', '.join(nodes)}",
        name,
    )


def _without(
    name: str, nodes: Iterable[str], lacking: Collection[str], refused: Collection[str]
) -> Refusal:
    seen = [f"{', '.join(lacking)} is not in this run, or was not reached"] if lacking else []
    seen += [f"{', '.join(refused)} is refused or lacks something"] if refused else []
    return Refusal(
        "RANKS_APART",
        f"{name} runs as one on {', '.join(nodes)}, and {'; '.join(seen)}",
        "all of its nodes in one run: a rank that stops alone loses the requests of all",
        f"mend that first, then run it for all of them: --limit {','.join(nodes)}",
        name,
    )


def alone(found: Mapping[str, Mapping[str, Deployed]]) -> dict[str, tuple[Refusal, ...]]:
    """Return, by node, why its services may not be stopped alone; nothing where all ranks are there.

    ``found``: what would be stopped, by node and by service.
    """
    said: dict[str, tuple[Refusal, ...]] = {}
    for node, services in found.items():
        refusals = []
        for name, one in services.items():
            nodes = one.service.nodes
            lacking = [
                other
                for other in nodes
                if (there := found.get(other, {}).get(name)) is None or there.service.nodes != nodes
            ]
            if lacking:
                refusals.append(_without(name, nodes, lacking, ()))
        if refusals:
            said[node] = tuple(refusals)
    return said
