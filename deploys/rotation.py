"""Out of the rotation before a stop, and back in after a verify: whoever sends requests is told.

This is the one place where such steps are registered; what a node's requests come through (a load
balancer of the operator's, by hooks, and the doors of other nodes) is told here before a server
stops and after one answers. A door of the node's own is told by the programs on the node, and here
where a server is to prove itself first, while others serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyinfra.context import host

from deploys.fleetdoors import doors_before
from operations import fardoor, hooks, meeting
from plans.deployed import Deployed
from plans.fardoor import LEASE_S
from plans.hooks import Hooks, Moment
from plans.wishes import Service


def leave(
    given: Hooks,
    service: Service,
    release: str,
    *,
    soak: float | None = None,
    comes_back: bool = True,
) -> None:
    """Register the steps before a server is stopped. One that fails stops this node before that.

    ``soak``: seconds that it is watched before it comes back; None where it need not prove itself.
    ``comes_back``: whether ``enter`` is registered too; else it is back as soon as it answers.
    """
    # No rank leaves while another still fetches, and none is stopped before all have left.
    _meet(service, 1)
    _leave(given, service, release, soak, comes_back=comes_back)
    _meet(service, 2)


def leave_all(given: Hooks, found: Mapping[str, Deployed], names: Collection[str]) -> None:
    """Register the steps before those of the deployed services that have these names go away."""
    for name, one in found.items():
        if name in names:  # other ranks of it may be gone for good: none is waited for
            _leave(given, one.service, one.release, None, comes_back=False)


def _leave(
    given: Hooks, service: Service, release: str, soak: float | None, *, comes_back: bool
) -> None:
    _register(given, "before_stop", service, release)
    for one in doors_before(host, service):
        # A door of this node is told by the node itself; it waits for no proof.
        if one.of_node and soak is None:
            continue
        fardoor.left(
            one=one,
            service=service.name,
            seconds=LEASE_S + (soak or 0) if comes_back else 0,
            name=f"Take {service.name} out of the door on {one.node}",
        )


def meet(service: Service) -> None:
    """Register that a node whose rank does not run goes on with all others of it, or not at all."""
    _meet(service, 1)
    _meet(service, 2)


def _meet(service: Service, stage: int) -> None:
    if not service.nodes:
        return
    meeting.comes(host, service.name)
    before = "leave the rotation" if stage == 1 else "are stopped or started"
    meeting.met(
        service=service.name,
        nodes=service.nodes,
        stage=stage,
        name=f"Wait for all ranks of {service.name} before they {before}",
    )


def enter(given: Hooks, service: Service, release: str) -> None:
    """Register the steps after a server was verified."""
    for one in doors_before(host, service):
        fardoor.back(
            one=one,
            service=service.name,
            name=f"Let {service.name} back into the door on {one.node}",
        )
    _register(given, "after_verify", service, release)


def _register(given: Hooks, moment: Moment, service: Service, release: str) -> None:
    for number, hook in enumerate(given.at(moment), 1):
        what = f"hook {number} of {moment}"
        hooks.ran(
            hook=hook,
            moment=moment,
            what=what,
            service=service.name,
            environment=_told(service, release),
            name=f"Run {what} for {service.name}",
        )


def _told(service: Service, release: str) -> Mapping[str, str]:
    return {
        "NODE": host.name,
        "SERVICE": service.name,
        "PORT": str(service.port),
        "RELEASE": release,
    }
