"""Upgrades one node: what is to prove itself, and the way back where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra.api.host import Host

from deploys import rotation
from deploys.back import WayBack, apply_way_back, way_back
from deploys.node import apply_plan
from deploys.past import survey_with_past
from facts.records import known
from locks.records import Lock
from operations import proof, service
from operations.outcomes import Outcome
from operations.service import record_of, record_text
from plans.deployed import chosen
from plans.hooks import Hooks
from plans.plan import NodePlan, ServicePlan
from plans.recorded import record_base
from plans.upgrading import KEY, may_go_back, to_prove


def apply_upgrade(plan: NodePlan, soak: float) -> None:
    """Register the operations of a node's upgrade: the plan's, and the proof of each service."""
    apply_plan(plan, {one.name: soak for one in to_prove(plan)})


@dataclass(frozen=True)
class Failed:
    """A service that has to go back, and why."""

    plan: ServicePlan
    why: str
    record: str | None  # text of the record that its deployment gets, where it has answered
    invocation_before: str
    refused: bool = False  # by the node, before its switch: what is current is not this run's


def failed_of(plan: NodePlan, outcome: Outcome) -> dict[str, Failed]:
    """Return the services of a node that are to go back, by name; none where the connection was
    lost: then nobody knows how far it came, and the next run takes it up."""
    if outcome.lost:
        return {}
    found = {}
    for one in to_prove(plan):
        verdict = outcome.verdicts.get(one.name)
        # A rank that follows is proved by rank 0.
        follows = one.service is not None and one.service.follows
        proved = one.name in outcome.proved or (follows and verdict is not None and verdict.ok)
        if proved or not may_go_back(plan, one):
            continue
        why = why_of(outcome, one.name)
        record = None
        if verdict is not None:
            told = {**record_base(one), KEY: "failed"}
            record = record_text({**record_of(told, verdict), "result": why})
        before = one.guard.invocation if one.guard and one.new_deployment else ""
        found[one.name] = Failed(one, why, record, before, refused=bool(outcome.refusals))
    return found


def with_their_ranks(
    plans: Mapping[Host, NodePlan], failed: Mapping[Host, Mapping[str, Failed]]
) -> dict[Host, dict[str, Failed]]:
    """Return what goes back on nodes that are well, because a rank that they serve with does."""
    nodes = {
        (name, one.plan.service.nodes): host
        for host, several in failed.items()
        for name, one in several.items()
        if one.plan.service and one.plan.service.nodes
    }
    found: dict[Host, dict[str, Failed]] = {}
    for host, plan in plans.items():
        for one in to_prove(plan):
            other = nodes.get((one.name, one.service.nodes)) if one.service else None
            if other is None or one.name in failed.get(host, {}) or not may_go_back(plan, one):
                continue
            before = one.guard.invocation if one.guard and one.new_deployment else ""
            why = f"{one.name} failed on {other.name}, which runs another rank of it"
            found.setdefault(host, {})[one.name] = Failed(one, why, None, before)
    return found


def why_of(outcome: Outcome, service: str = "") -> str:
    """Return in one sentence why a node failed, or one of its services."""
    sentences = [one.removeprefix(f"{service}: ") for one in outcome.failures]
    sentences += [one.sentence for one in outcome.verdicts.values() if not one.ok]
    sentences += [f"{one.code}: {one.seen}" for one in outcome.refusals]
    return " ".join(sentences[0].split()) if sentences else "it did not come to its end"


def way_back_from(
    host: Host, failed: Mapping[str, Failed], lock: Lock | None, *, allow_daemon_reload: bool
) -> WayBack | None:
    """Return the way back of the services that were switched; None where the survey failed.

    One whose switch did not come is left out: what served before is still the current one.
    """
    found = survey_with_past(host, 1, "previous")
    if found is None:
        return None
    switched = tuple(
        name
        for name, one in failed.items()
        if not one.refused
        and (state := found.services.get(name)) is not None
        and known(state.current)
        and state.current == one.plan.number
    )
    if not switched:
        return WayBack(host.name, ())
    return way_back(
        host,
        found,
        switched,
        None,
        lock,
        allow_daemon_reload=allow_daemon_reload,
        goes_on=False,
    )


def take_back(way: WayBack, failed: Mapping[str, Failed], hooks: Hooks) -> None:
    """Register the operations that keep both logs of what failed, and go back."""
    for one in way.backs:
        left = failed[one.name]
        proof.logs_kept(
            service=one.name,
            number=left.plan.number,
            invocation_before=left.invocation_before,
            record=left.record,
            name=f"Keep the logs of {one.name}",
        )
    apply_way_back(way, hooks, in_rotation=False)


def put_back(host: Host, names: set[str], hooks: Hooks) -> None:
    """Register the return to the rotation of services that were taken out and then not stopped."""
    found = survey_with_past(host, 1, "previous")
    if found is None:
        return
    for name, one in chosen(found, tuple(sorted(names))).items():
        service.verified(
            service=one.service, release=one.release, number=one.number, name=f"Verify {name}"
        )
        rotation.enter(hooks, one.service, one.release)
