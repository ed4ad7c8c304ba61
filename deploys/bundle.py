"""What makes a bundle of one node: what it lacks is fetched there first, then all is gathered."""

from __future__ import annotations

from operations import apply, bundle, credentials, door, environment, image, weights
from operations.bundle import Making
from plans.plan import NodePlan


def make_bundle(plan: NodePlan, making: Making) -> None:
    """Register the operations that make a bundle of a node's services; nothing of them is changed."""
    fetched = [m.repo for m in making.made_of.models]
    wanted = [
        one
        for one in plan.services
        if one.weights is not None and one.weights.fetch and one.weights.repo in fetched
    ]
    if wanted and plan.hub_token is not None:
        credentials.hub_token(plan=plan, name="Write the hub token")
    for one in plan.services:
        if one.environment is not None:
            environment.present(plan=one, name=f"Make the environment of {one.name}")
        elif making.made_of.images:
            image.present(plan=one, name=f"Fetch the image of {one.name}")
    if plan.door is not None and plan.door.environment is not None:
        door.packaged(plan=plan.door, name="Make the environment of the door")
    for one in wanted:
        weights.present(plan=one, name=f"Fetch and check the weights of {one.name}")
    bundle.made(making=making, name=f"Make {making.out.name}")
    apply.released(name="Give the apply lock back")
