"""The plans of many nodes as a few: equal ones folded into one entry, refusals by their code.

Pure: what is printed, and the HTML report, are both drawn from these records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from plans.plan import NodePlan
from plans.refusals import Refusal

State = Literal["refused", "unresolved", "changes", "ready"]
STATES: tuple[State, ...] = ("refused", "unresolved", "changes", "ready")
"""What a plan comes to, worst first."""


def state_of(plan: NodePlan) -> State:
    """Return what a node's plan comes to, in one word."""
    if plan.refusals:
        return "refused"
    if plan.unresolved or plan.unread:
        return "unresolved"
    return "changes" if plan.changes else "ready"


def headline(plan: NodePlan) -> str:
    """Return what a node's plan comes to, in a few words: the same wherever people read it."""
    if plan.refusals:
        return f"refused, for {_several(len(plan.refusals), 'reason')}"
    if plan.converged:
        return "unchanged, ready"
    parts = [_several(len(plan.changes), "change")] if plan.changes else []
    parts += ["unresolved"] if state_of(plan) == "unresolved" else []
    return ", ".join(parts)


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Fold:
    """Nodes whose plans say the same."""

    plans: tuple[NodePlan, ...]

    @property
    def plan(self) -> NodePlan:
        """What each of them says."""
        return self.plans[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names, in the inventory's order."""
        return tuple(plan.node for plan in self.plans)


def folded(plans: Iterable[NodePlan]) -> tuple[Fold, ...]:
    """Return the plans with those that say the same folded together, in their first ones' order."""
    found: dict[object, list[NodePlan]] = {}
    for plan in plans:
        found.setdefault(_said(plan), []).append(plan)
    return tuple(Fold(tuple(same)) for same in found.values())


def _said(plan: NodePlan) -> object:
    """Return all that people read of a plan, without the node's own name."""

    def plain(text: str) -> str:
        return _without_name(text, plan.node)

    return (
        plan.decision,
        plan.release,
        plan.image,
        tuple((one.code, plain(one.seen), one.needed, plain(one.advice), one.service,
               plain(one.diff))
              for one in plan.refusals),
        tuple((one.code, plain(one.text), one.service) for one in plan.cautions),
        tuple(map(plain, plan.reasons)),
        tuple((one.kind, plain(one.what), plain(one.why), one.service, plain(one.diff))
              for one in plan.changes),
        plan.unresolved,
        plan.unread,
    )  # fmt: skip


def _without_name(text: str, node: str) -> str:
    # The whole name alone: a node may be called "a".
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w.-])", "NODE", text)


@dataclass(frozen=True)
class RefusedFor:
    """One reason for which nodes are refused, with one advice."""

    refusal: Refusal  # of the first of them
    nodes: tuple[str, ...]


def refused_for(plans: Iterable[NodePlan]) -> tuple[RefusedFor, ...]:
    """Return the reasons of all refusals, each once with its nodes, the most frequent first.

    One code may have several advices (another system, another driver): each is a reason.
    """
    found: dict[tuple[str, str], tuple[Refusal, dict[str, None]]] = {}
    for plan in plans:
        for one in plan.refusals:
            key = (one.code, _without_name(one.advice, plan.node))
            found.setdefault(key, (replace(one, service=None), {}))[1][plan.node] = None
    reasons = [RefusedFor(refusal, tuple(nodes)) for refusal, nodes in found.values()]
    return tuple(sorted(reasons, key=lambda one: (-len(one.nodes), one.refusal.code)))


def counts(plans: Iterable[NodePlan]) -> dict[State, int]:
    """Return how many plans come to each state."""
    states = [state_of(plan) for plan in plans]
    return {state: states.count(state) for state in STATES}
