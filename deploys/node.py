"""What every deploy does with one node: survey it, plan, and register the operations.

Nothing here raises for a bad node: in pyinfra one exception in deploy code ends
the run for every host. A node that cannot go on is marked as failed instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyinfra import logger
from pyinfra.api.host import Host

from deploys import rotation
from deploys.fleetdoors import DATA_KEY as DATA_KEY
from deploys.fleetdoors import with_strangers
from facts.records import Survey
from facts.survey import SurveyRequest, read_survey
from locks.records import Lock
from operations import (
    ahead,
    apply,
    bundle,
    canary,
    credentials,
    door,
    environment,
    files,
    image,
    proof,
    service,
    weights,
)
from operations.outcomes import outcome_of
from operations.realhost import real_host
from operations.remote import say_failed
from plans import paths
from plans.bundle import Bundle
from plans.clock import clock_cautions
from plans.deployed import NotDeployed, all_deployed, chosen
from plans.doorwish import door_tls
from plans.hooks import Hooks, to_run
from plans.maintenance import maintenance_cautions
from plans.make import make_plan
from plans.places import UNITS
from plans.plan import NodePlan, ServicePlan
from plans.recorded import record_base
from plans.refusals import Refusal
from plans.reload import what_reload_does
from plans.scripts import Take
from plans.secrets import NONE, NodeSecrets
from plans.unended import came_from
from plans.upgrading import KEY
from plans.version import VERSION
from plans.weights import weights_to_survey
from plans.wishes import Service, Wishes, WishesError, read_wishes


@dataclass(frozen=True)
class Options:
    """What the operator chose for this run."""

    lock: Lock | None
    discard_edits: bool = False
    allow_daemon_reload: bool = False
    secrets: Mapping[str, NodeSecrets] = field(default_factory=dict)  # by node
    bundle: Bundle | None = None  # what is missing comes from it
    with_door: bool = True  # False: some services alone are meant, and the door stays as it is


def request_for(wishes: Wishes | None) -> SurveyRequest:
    """Return what to survey for these wishes; None asks for what is deployed alone."""
    services = wishes.services if wishes else ()
    spaces = [paths.STATE, paths.CACHES, paths.WEIGHTS, "/opt/sglang", UNITS]
    if wishes:
        spaces += [wishes.paths.weights, wishes.paths.caches]
    spaces += [one.model for one in services if one.is_local]
    return SurveyRequest(
        spaces=tuple(dict.fromkeys(spaces)),
        models=tuple(dict.fromkeys(one.model for one in services if one.is_local)),
        files=(paths.credential(paths.HUB_TOKEN_MARK), paths.DOOR_KEYS),
        texts=(
            paths.UNIT,
            paths.DEVICES_UNIT,
            *paths.DOOR_UNITS,
            paths.MAINTENANCE,
            *(paths.wheel_unit(one.name) for one in services),
        ),
        secrets=(paths.credential(paths.HUB_TOKEN),),
        weights=weights_to_survey(wishes),
        deployments=paths.DEPLOYMENTS,
        door_tls=door_tls(wishes.door) if wishes else None,
        version=VERSION,
    )


def wishes_of(host: Host) -> Wishes | None:
    """Return the wishes of a host's data, or None where it has none. Raises WishesError."""
    data = host.data.get(DATA_KEY)
    return None if data is None else read_wishes(data, host.name)


def fail(host: Host, sentence: str) -> None:
    """Mark a node as failed, with a sentence that says why; the others go on."""
    say_failed(host, sentence)
    host = real_host(host)
    host.state.fail_hosts({host})  # type: ignore[no-untyped-call]


def survey_of(host: Host, wishes: Wishes | None) -> Survey | None:
    """Return a node's survey, read once; None where it failed (the node is then marked)."""
    return read_survey(host, request_for(wishes))


def plan_node(host: Host, wishes: Wishes, options: Options) -> NodePlan | None:
    """Return the plan of one node, or None where it could not be surveyed."""
    survey = survey_of(host, wishes)
    if survey is None:
        return None
    return with_strangers(plan_of(survey, wishes, options, now=time.time()), host, wishes.door)


def plan_of(
    survey: Survey, wishes: Wishes, options: Options, *, now: float | None = None
) -> NodePlan:
    """Return the plan of a node that was surveyed.

    ``now``: this machine's time, seconds since 1970, where the survey is of now too.
    """
    plan = make_plan(
        survey,
        wishes,
        options.lock,
        VERSION,
        discard_edits=options.discard_edits,
        allow_daemon_reload=options.allow_daemon_reload,
        secrets=options.secrets.get(survey.node, NONE),
        bundle=options.bundle,
        with_door=options.with_door,
    )
    if now is None:
        return plan
    return replace(
        plan, cautions=(*plan.cautions, *maintenance_cautions(survey), *clock_cautions(survey, now))
    )


def refuse(host: Host, refusals: Iterable[Refusal]) -> None:
    """Mark a node as refused, each reason in a line; the others go on."""
    said = list(refusals)
    outcome_of(host).refusals.extend(said)
    for one in said:
        logger.error(
            f"{host.print_prefix}{one.code}: {one.seen}. Needed: {one.needed}. {one.advice}"
        )
    real = real_host(host)
    real.state.fail_hosts({real})  # type: ignore[no-untyped-call]


def apply_plan(plan: NodePlan, proofs: Mapping[str, float] | None = None) -> None:
    """Register the operations that make a plan true, service by service.

    Everything slow is done while the old service serves; the switch comes last. ``proofs``: the
    services that prove themselves before they count, and the seconds that each is watched.
    """
    if plan.hub_token is not None:
        credentials.hub_token(plan=plan, name="Write the hub token")
    if plan.door is not None and plan.door.act != "remove":
        door.prepared(plan=plan.door, name="Prepare the door")
    for one in plan.services:
        apply_service(plan, one, (proofs or {}).get(one.name))
    if plan.door is not None:
        door.present(plan=plan.door, name="Set up the door")
    if any(one.bundle for one in (*plan.services, plan.door) if one is not None):
        bundle.cleared(plan=plan, name="Take the bundle's files away")
    if plan.changes or proofs:
        apply.released(name="Give the apply lock back")


def unresolved_refusals(plan: NodePlan, target: str | None) -> list[Refusal]:
    """Return why a plan cannot be applied whose lock lacks something; none where it has all."""
    return [
        Refusal(
            "LOCK_UNRESOLVED",
            one,
            "an image by digest and a model by commit",
            f"make the lock first: sglang-node lock {target or 'INVENTORY'}",
        )
        for one in plan.unresolved
    ]


SWITCH = {"start": "Start", "restart": "Restart", "wait": "Wait for"}
"""What people read of a switch, by what it does with the unit."""


def apply_service(plan: NodePlan, one: ServicePlan, soak: float | None = None) -> None:
    """Register the operations of one service; with ``soak`` it proves itself, watched so long."""
    if one.bundle is not None:
        bundle.present(plan=one, name=f"Bring what {one.name} needs from the bundle")
    if one.environment is None:
        image.present(plan=one, name=f"Fetch the image of {one.name}")
    else:
        environment.present(plan=one, name=f"Make the environment of {one.name}")
    weights.present(plan=one, name=f"Fetch and check the weights of {one.name}")
    files.deployment(plan=one, name=f"Write the deployment of {one.name}")
    if one.launch is not None and one.launch.service.keys:
        credentials.keys(plan=one, name=f"Write the keys of {one.name}")
    tried = "CUDA in the image" if one.environment is None else "the environment"
    canary.passed(plan=one, name=f"Try {tried} of {one.name}")
    if one.ahead is not None and one.ahead.acts:
        ahead.compiled(plan=one, name=f"Compile kernels of {one.name} while it serves")
    served = one.launch.service if one.launch else None
    release = one.decision.release or ""
    hooks = one.launch.wishes.hooks if one.launch else Hooks()
    if served is not None and (one.act == "restart" or one.stop_first):
        rotation.leave(hooks, served, release, soak=soak)
    elif served is not None and one.act == "start":
        rotation.meet(served)
    service.switched(plan=one, name=f"{SWITCH.get(one.act, 'Set up')} {one.name}")
    if served is not None and (one.act != "none" or soak is not None):
        record = record_base(one)
        begun = to_run(hooks) if soak is None else {KEY: "begun"}
        ended = {} if soak is None else {KEY: "proved", "soak_seconds": soak}
        service.verified(
            service=served,
            release=release,
            number=one.number,
            record={**record, **begun},
            name=f"Verify {one.name}",
        )
        if soak is not None and not served.follows:  # rank 0 proves them all
            prove(one, served, soak)
        rotation.enter(hooks, served, release)
        if begun:
            proof.recorded(
                service=served,
                number=one.number,
                record={**record, **ended},
                name=f"Record that {one.name} {'is back' if soak is None else 'has proved itself'}",
            )


def prove(one: ServicePlan, served: Service, soak: float) -> None:
    """Register the proof of a service: harder than ready, then watched for so many seconds."""
    release = one.decision.release or ""
    proof.verified_hard(
        service=served, release=release, number=one.number, name=f"Prove {one.name}"
    )
    proof.soaked(
        service=served,
        release=release,
        number=one.number,
        seconds=soak,
        name=f"Watch {one.name} for {soak:g} s",
    )


def right_wishes_of(host: Host) -> Wishes | None:
    """Return the wishes of a host's data; None where it has none or they are wrong."""
    try:
        return wishes_of(host)
    except WishesError:
        return None


def hooks_of(host: Host) -> Hooks:
    """Return the hooks of a host's data; none where it has no data or they are wrong."""
    wishes = right_wishes_of(host)
    return wishes.hooks if wishes else Hooks()


def verify_node(host: Host, only: tuple[str, ...] = (), *, hard: bool = False) -> None:
    """Register the verify of every service that is deployed on a node; ``hard``: and the proof
    that an upgrade asks for."""
    survey = survey_of(host, None)
    if survey is None:
        return
    try:
        found = chosen(survey, only)
    except NotDeployed as error:
        fail(host, str(error))
        return
    for name, one in found.items():
        service.verified(
            service=one.service,
            release=one.release,
            number=one.number,
            unended=came_from(survey, survey.services[name]) is not None,
            name=f"Verify {name}",
        )
        if hard and not one.service.follows:
            proof.verified_hard(
                service=one.service, release=one.release, number=one.number, name=f"Prove {name}"
            )


def remove_from(
    host: Host,
    only: tuple[str, ...] = (),
    take: Take | None = None,
    *,
    allow_daemon_reload: bool = False,
) -> None:
    """Register the removal of a node's services, or of some of them.

    systemd reloads at the end of it: refused where other containers lose their GPUs by
    that, unless the operator allows it, here or in the inventory.
    """
    survey = survey_of(host, None)
    if survey is None:
        return
    there = tuple(sorted(survey.services))
    unknown = [name for name in only if name not in there]
    if unknown:
        fail(host, f"{', '.join(unknown)} is not here: there is {', '.join(there) or 'nothing'}")
        return
    harm = what_reload_does(survey, None, only or there) if there else None
    if harm is not None and not (allow_daemon_reload or _reload_is_allowed(host)):
        refuse(host, [harm])
        return
    rotation.leave_all(hooks_of(host), all_deployed(survey), only or there)
    stays = {name for name, one in survey.services.items() if one.deployments} - {*(only or there)}
    if survey.door.is_there and not stays:  # nor does what it runs from stay
        door.removed(name="Take the door away")
    service.removed(services=only or there, take=take or Take(), name="Remove")
    apply.released(name="Give the apply lock back")


def _reload_is_allowed(host: Host) -> bool:
    """Say whether the inventory allows it; one that is wrong or says nothing does not."""
    wishes = right_wishes_of(host)
    return wishes is not None and wishes.allow_daemon_reload
