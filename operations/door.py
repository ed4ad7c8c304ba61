"""Puts the door before a node's servers in its place, or takes it away."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import StringCommand, operation
from pyinfra.context import host

from operations.bundle import brought
from operations.environment import programs
from operations.remote import Program, failing
from plans import door as door_programs
from plans import paths, scripts
from plans.door import DoorPlan


@operation()
def prepared(plan: DoorPlan) -> Generator[StringCommand, None, None]:
    """
    Make the door's environment, write its settings, its keys and its units, while all serves on.

    + plan: the door's part of the node's plan

    It comes before any service is switched: systemd's reload harms no container that starts later.

    **Example:**

    .. code:: python

        door.prepared(plan, name="Prepare the door")
    """
    environment = plan.environment
    makes = environment is not None and environment.changes
    if not (makes or plan.new or plan.keys or plan.installs):
        host.noop("nothing of the door is missing")
        return
    if plan.bundle is not None:
        yield from brought(paths.DOOR, plan.bundle)
    if environment is not None and makes:
        yield from programs(environment, paths.DOOR, plan.bundle.wheels if plan.bundle else None)
    if plan.new:
        yield Program(
            scripts.write_deployment(plan.directory, plan.files),
            f"write {plan.directory}",
            show=False,
            judge=failing(f"{plan.directory} could not be written"),
        )
    if plan.keys is not None:
        yield Program(
            scripts.write_secrets((plan.keys,)),
            f"write {plan.keys.path}",
            show=False,
            judge=failing(f"{plan.keys.path} could not be written"),
        )
    if plan.installs:
        yield Program(
            door_programs.prepare(plan),
            "write the units of the door",
            judge=failing("the door's units could not be put in their places"),
        )


@operation()
def packaged(plan: DoorPlan) -> Generator[Program, None, None]:
    """
    Make the door's environment alone: a bundle is made from it.

    + plan: the door's part of the node's plan

    **Example:**

    .. code:: python

        door.packaged(plan, name="Make the environment of the door")
    """
    if plan.environment is None or not plan.environment.changes:
        host.noop("the environment of the door is there and whole")
        return
    yield from programs(plan.environment, paths.DOOR)


@operation()
def present(plan: DoorPlan) -> Generator[Program, None, None]:
    """
    Start the door with the plan's settings, and wait until it has its servers; or take it away.

    + plan: the door's part of the node's plan

    It comes after its servers were verified. A door that runs takes other settings while it
    serves; only for another unit it answers what is in flight and starts again.

    **Example:**

    .. code:: python

        door.present(plan, name="Start the door")
    """
    if plan.act == "none" and not plan.new:
        host.noop("the door stands as it should")
        return
    remove = plan.act == "remove"
    yield Program(
        door_programs.remove() if remove else door_programs.switch(plan),
        "take the door away" if remove else "start the door",
        judge=failing("the door could not be taken away" if remove else "the door does not stand"),
    )


@operation(is_idempotent=False)
def removed() -> Generator[Program, None, None]:
    """
    Take the door away: what is in flight is answered first.

    **Example:**

    .. code:: python

        door.removed(name="Take the door away")
    """
    yield Program(
        door_programs.remove(),
        "take the door away",
        judge=failing("the door could not be taken away"),
    )
