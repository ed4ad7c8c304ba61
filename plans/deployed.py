"""What is deployed on a node, read back from its survey."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import ValidationError

from facts.records import ServiceState, Survey, known
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
