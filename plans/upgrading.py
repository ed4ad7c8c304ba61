"""What an upgrade asks for beside a plan: the wishes with another release, and whether it proved.

A deployment that an upgrade made says in its record whether it has proved itself: ``begun`` from
its first answer on, ``proved`` once it stood its soak, ``failed`` where it did not. A run that was
cut in between is so taken up again by the next one.
"""

from __future__ import annotations

from typing import Literal

from facts.records import ServiceState, known
from plans.plan import NodePlan, ServicePlan
from plans.recorded import first_answer_seconds, read_record
from plans.wishes import Wishes
from releases.table import get_release

KEY = "upgrade"
"""Key of ``record.json`` that says how far an upgrade came."""

Proof = Literal["begun", "proved", "failed"]


class NotUpgradable(Exception):
    """The inventory's data and the upgrade contradict each other; the text says what to write."""


def with_release(wishes: Wishes, release: str, only: tuple[str, ...], node: str) -> Wishes:
    """Return the wishes for all services or ``only``, with that release in place of the inventory's.

    Raises UnknownRelease, and NotUpgradable where an image or a lock is named that is of another.
    """
    version = get_release(release).version
    services = []
    for service in wishes.services:
        if only and service.name not in only:
            continue
        image, lock = wishes.image_of(service), wishes.wheel_lock_of(service)
        if image is not None and version not in image:
            raise NotUpgradable(
                f"{node}: the inventory names an image for {service.name}, {image}: write there the "
                f"one of {version}, then apply"
            )
        if lock is not None and wishes.release_of(service) not in (None, version):
            raise NotUpgradable(
                f"{node}: the inventory names a lock of packages for {service.name} (wheel_lock): "
                f"write there the one of {version} and release {version!r}, then apply"
            )
        services.append(service.model_copy(update={"release": version}))
    return wishes.model_copy(update={"services": tuple(services)})


def keys_to_set(wishes: Wishes, release: str, only: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to set in the inventory, key and value, or the next apply would take the upgrade
    back; () where it says so already."""
    found: dict[str, None] = {}
    for service in wishes.services:
        if (only and service.name not in only) or wishes.release_of(service) == release:
            continue
        if service.release is not None or only:
            was = f" (it says {service.release})" if service.release else ""
            found[f"sglang.services[{service.name}].release to {release!r}{was}"] = None
        else:
            was = f" (it says {wishes.release})" if wishes.release else ""
            found[f"sglang.release to {release!r}{was}"] = None
    return tuple(found)


# --- how far an earlier run came


def proof_of(state: ServiceState) -> Proof | None:
    """Return how far an upgrade to the current deployment came; None where none made it."""
    said = read_record(state.record).get(KEY)
    return said if said in ("begun", "proved", "failed") else None


def to_prove(plan: NodePlan) -> tuple[ServicePlan, ...]:
    """Return the services of a node that have to prove themselves in this run."""
    return tuple(
        one for one in plan.services if one.act != "none" or one.new_deployment or _cut(plan, one)
    )


def may_go_back(plan: NodePlan, one: ServicePlan) -> bool:
    """Say whether a service that fails now is to go back: it is this upgrade that put it there.

    One that stands on the release for long, and only is not running, has no way to go.
    """
    return one.new_deployment or _cut(plan, one) or _unrecorded(plan, one)


def _cut(plan: NodePlan, one: ServicePlan) -> bool:
    return not one.new_deployment and proof_of(_state(plan, one)) in ("begun", "failed")


def _unrecorded(plan: NodePlan, one: ServicePlan) -> bool:
    return not known(_state(plan, one).record)


def _state(plan: NodePlan, one: ServicePlan) -> ServiceState:
    services = plan.survey.services if plan.survey else {}
    return services.get(one.name, ServiceState(one.name))


# --- how long it takes


def seconds_by_the_records(plan: NodePlan, soak: float) -> float | None:
    """Return the seconds that a node's switch and proof may take by its last records: the last
    start's, and the soak, for each service in turn; None where no record tells."""
    told = []
    for one in plan.services:
        seconds = first_answer_seconds(_state(plan, one).record)
        if seconds is not None:
            told.append(seconds + soak)
    return sum(told) if told else None


def minutes(seconds: float) -> str:
    """Return a time as people read it: ``40 s``, ``12 min``."""
    return f"{round(seconds)} s" if seconds < 120 else f"{round(seconds / 60)} min"
