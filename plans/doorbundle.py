"""What the door takes from a bundle: its packages, Python and uv, as an environment has them."""

from __future__ import annotations

from facts.records import Survey
from plans import paths
from plans.bundle import Bundle, Taken
from plans.bundled import AGAIN, bundled_environment
from plans.findings import Findings
from plans.wheel.environment import PlannedEnvironment
from releases.door import ROUTER, VERSION


def door_from_bundle(
    bundle: Bundle, planned: PlannedEnvironment, survey: Survey, found: Findings
) -> tuple[PlannedEnvironment, Taken | None]:
    """Return the door's environment as it is built from a bundle, and what it takes from that.

    Refused is a bundle without it, where the node does not have it already.
    """
    there = {one.key for one in bundle.manifest.environments}
    if planned.build and planned.key not in there:
        found.refuse(
            "DOOR_NOT_IN_BUNDLE",
            None,
            f"neither the node nor the bundle has the door's {ROUTER} {VERSION} ({planned.key})",
            "a bundle that was made of an inventory with this door",
            AGAIN,
        )
        return planned, None
    planned, built = bundled_environment(bundle, paths.DOOR, planned, survey, found)
    return planned, Taken(bundle, environment=built) if built is not None else None
