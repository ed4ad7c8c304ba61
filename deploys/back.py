"""Goes back on one node: to the deployment that was before, or to a named one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyinfra.api.host import Host

from deploys import rotation
from deploys.node import apply_plan, right_wishes_of
from facts.records import Survey
from locks.records import Lock
from operations import apply, back, proof, service
from plans.deployed import NotDeployed, check_named
from plans.goingback import Back, go_back
from plans.hooks import Hooks, to_run
from plans.make import make_plan
from plans.plan import NodePlan
from plans.version import VERSION
from plans.wishes import Service, Wishes, read_wishes


@dataclass(frozen=True)
class WayBack:
    """What going back does on one node."""

    node: str
    backs: tuple[Back, ...]
    again: NodePlan | None = None  # of those whose driver or GPUs are others now

    @property
    def refused(self) -> bool:
        """Whether nothing may be changed on this node."""
        return any(one.refusals for one in self.backs) or (
            self.again is not None and bool(self.again.refusals or self.again.unresolved)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which it stands in JSON documents."""
        found: dict[str, Any] = {
            "node": self.node,
            "services": [one.as_dict() for one in self.backs],
        }
        return found if self.again is None else {**found, "plan": self.again.as_dict()}


def way_back(
    host: Host,
    survey: Survey,
    only: tuple[str, ...],
    to: int | None,
    lock: Lock | None,
    *,
    allow_daemon_reload: bool,
    goes_on: bool = True,
) -> WayBack:
    """Return what going back does on a node; ``goes_on``: also a way back that was cut before.
    Raises NotDeployed.

    A service whose driver or GPUs have changed since is planned again, as it was wished for
    then, with the lock that is there: nothing is asked of registry or hub.
    """
    there = {name: state for name, state in survey.services.items() if state.deployments}
    check_named(only, there)
    meant = {name: state for name, state in sorted(there.items()) if not only or name in only}
    if to is not None and len(meant) > 1:
        raise NotDeployed(
            f"--to {to} is a number of one service: say which with --service: {', '.join(meant)}"
        )
    backs = tuple(
        go_back(survey, state, to, allow_daemon_reload=allow_daemon_reload, goes_on=goes_on)
        for state in meant.values()
    )
    again = [
        (one.service, one.release)
        for one in backs
        if one.moved and one.service is not None and not one.refusals
    ]
    if not again:
        return WayBack(survey.node, backs)
    wishes = _wishes_then(host, again)
    plan = make_plan(
        survey, wishes, lock, VERSION, allow_daemon_reload=allow_daemon_reload, with_door=False
    )
    return WayBack(survey.node, backs, plan.of_some())


def _wishes_then(host: Host, services: list[tuple[Service, str]]) -> Wishes:
    """Return the wishes of a node with services as they were then, each with its release.

    What a deployment does not tell (an environment, keys) is as the inventory has it now.
    """
    now = right_wishes_of(host)
    then = []
    for one, release in services:
        of_now = next((s for s in now.services if s.name == one.name), None) if now else None
        private = {"environment", "api_key", "admin_api_key"}
        kept = {key: getattr(of_now, key) for key in private} if of_now else {}
        then.append(one.model_copy(update={**kept, "release": release}))
    if now is not None:
        return now.model_copy(update={"services": tuple(then)})
    dumped = [one.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for one in then]
    return read_wishes({"services": dumped}, host.name)


def apply_way_back(way: WayBack, hooks: Hooks, *, in_rotation: bool = True) -> None:
    """Register the operations that go back on a node.

    ``in_rotation``: whether what runs now is sent requests, so that it is taken out before.
    """
    for one in way.backs:
        if one.moved or one.service is None:
            continue
        if in_rotation and one.act == "restart":
            rotation.leave(hooks, one.service, one.release)
        elif in_rotation:
            rotation.meet(one.service)
        back.switched_back(back=one, name=f"Go back to deployment {one.number} of {one.name}")
        record = {
            "deployment": one.number,
            "release": one.release,
            "image": one.launch.get("SGLANG_IMAGE"),
            "build": one.launch.get("SGLANG_BUILD"),
            "rolled_back_from": one.current if one.came_from is None else one.came_from or None,
        }
        service.verified(
            service=one.service,
            release=one.release,
            number=one.number,
            record={**record, **to_run(hooks)},
            name=f"Verify {one.name}",
        )
        rotation.enter(hooks, one.service, one.release)
        if to_run(hooks):
            proof.recorded(
                service=one.service,
                number=one.number,
                record=record,
                name=f"Record that {one.name} is back",
            )
    if way.again is not None:
        apply_plan(way.again)
    if way.again is None or not way.again.changes:  # else it gives the lock back itself
        apply.released(name="Give the apply lock back")
