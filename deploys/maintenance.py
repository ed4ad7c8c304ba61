"""Drains a node for a reboot, and takes it back."""

from __future__ import annotations

from pyinfra.api.host import Host

from deploys import rotation
from deploys.node import fail, hooks_of, survey_of
from operations import apply, maintenance, service
from plans.deployed import NotDeployed, all_deployed, chosen
from plans.maintenance import MarkError, is_well, mark_of, new_mark, steps


def drain_node(host: Host, only: tuple[str, ...]) -> None:
    """Register the drain of a node's services for a reboot. Raises NotDeployed.

    They stay enabled: they come back with the node.
    """
    found = survey_of(host, None)
    if found is None:
        return
    services = chosen(found, only)
    try:
        mark = new_mark(found, tuple(sorted(services)))
    except MarkError as error:
        fail(host, str(error))
        return
    maintenance.marked(mark=mark, name="Mark the node")
    hooks = hooks_of(host)
    for name, one in services.items():
        rotation.leave(hooks, one.service, one.release, comes_back=False)
        service.stopped(name_of_service=name, release=one.release, name=f"Drain {name}")
    apply.released(name="Give the apply lock back")


def call_off(host: Host) -> None:
    """Register what takes the mark of a node away."""
    maintenance.called_off(name="Call the maintenance off")
    apply.released(name="Give the apply lock back")


def take_back(host: Host, only: tuple[str, ...]) -> None:
    """Register the end of a node's maintenance, where it is in any: after the verify.

    Not where services of it are not asked for. A node that failed on the way is left as it is. What
    was drained is back in the rotation before the mark goes. Raises NotDeployed where its mark
    cannot be read.
    """
    found = survey_of(host, None)
    if found is None:
        return
    try:
        mark = mark_of(found)
    except MarkError as error:
        raise NotDeployed(str(error)) from error
    if mark is not None and (not only or {*mark.services} <= {*only}):
        seen, there = steps(found, mark), all_deployed(found)
        # Its services were verified before this: where one was not, this node's run has ended.
        if is_well(seen, mark) and {*mark.services} <= {*there}:
            hooks = hooks_of(host)
            for name in mark.services:
                rotation.enter(hooks, there[name].service, there[name].release)
        maintenance.ended(mark=mark, steps=seen, name="End the maintenance")
        apply.released(name="Give the apply lock back")
