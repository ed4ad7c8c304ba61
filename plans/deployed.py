"""What is deployed on a node, read back from its survey."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from facts.records import ServiceState, Survey, known
from plans import paths
from plans.wishes import Service


@dataclass(frozen=True)
class Deployed:
    """A service that the toolkit deployed, with the deployment it runs."""

    service: Service
    release: str
    number: int
    state: ServiceState


def deployed(state: ServiceState) -> Deployed | None:
    """Return what a service was last deployed with; None where that cannot be read.

    Its environment is not in there: it may hold what is private.
    """
    if not known(state.plan) or not known(state.current):
        return None
    try:
        document = json.loads(state.plan)
        service = Service.model_validate(document["service"])
        return Deployed(service, str(document["release"]), state.current, state)
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
        return None


def all_deployed(survey: Survey) -> dict[str, Deployed]:
    """Return what is deployed on a node, by service name."""
    found = {name: deployed(state) for name, state in sorted(survey.services.items())}
    return {name: one for name, one in found.items() if one is not None}


class NotDeployed(Exception):
    """A service that is asked for is not there, or cannot be told from what is; the text says which."""


def check_named(only: Iterable[str], there: Collection[str]) -> None:
    """Raise NotDeployed where one that is named is not among the services that are deployed, or
    where there are none."""
    if missing := [name for name in only if name not in there]:
        rest = f"there is {', '.join(sorted(there))}" if there else "no service is deployed here"
        raise NotDeployed(f"{', '.join(missing)} is not deployed here: {rest}")
    if not there:
        raise NotDeployed("no service is deployed here")


def chosen(survey: Survey, only: tuple[str, ...]) -> dict[str, Deployed]:
    """Return the services that are meant: those named, or all. Raises NotDeployed.

    A service whose plan cannot be read is deployed all the same: it is named, never passed over.
    """
    there = all_deployed(survey)
    unread = [
        name for name, one in survey.services.items() if one.deployments and name not in there
    ]
    if hidden := [name for name in unread if not only or name in only]:
        units = " ".join(paths.unit_of(name) for name in hidden)
        raise NotDeployed(
            f"{', '.join(hidden)} is deployed, and {paths.PLAN_JSON} of it cannot be read: apply "
            f"writes a new one; on the node: sudo systemctl stop {units}"
        )
    check_named(only, there)
    return {name: one for name, one in there.items() if not only or name in only}
