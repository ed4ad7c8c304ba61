"""What every deploy does with one node: survey it, plan, and register the operations.

Nothing here raises for a bad node: in pyinfra one exception in deploy code ends
the run for every host. A node that cannot go on is marked as failed instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from pyinfra import logger
from pyinfra.api.host import Host
from pyinfra.context import ContextObject

from deploys.secrets import Reader, read_secrets
from facts.records import Survey
from facts.survey import SurveyRequest, read_survey
from locks.lockfile import LockError, read_lock
from locks.records import Lock
from locks.where import lock_path
from operations import apply, canary, credentials, files, image, service, weights
from operations.outcomes import outcome_of
from operations.remote import say_failed
from plans import paths
from plans.clock import clock_cautions
from plans.deployed import NotDeployed, chosen
from plans.make import make_plan
from plans.places import UNITS
from plans.plan import NodePlan, ServicePlan
from plans.refusals import Refusal
from plans.reload import what_reload_does
from plans.scripts import Take
from plans.secrets import NONE, NodeSecrets
from plans.version import VERSION
from plans.weights import weights_to_survey
from plans.wishes import Wishes, WishesError, read_wishes

DATA_KEY = "sglang"
"""Key of a host's or group's data under which the operator's wishes stand."""


@dataclass(frozen=True)
class Options:
    """What the operator chose for this run."""

    lock: Lock | None
    discard_edits: bool = False
    allow_daemon_reload: bool = False
    secrets: Mapping[str, NodeSecrets] = field(default_factory=dict)  # by node


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
        files=(paths.credential(paths.HUB_TOKEN_MARK),),
        texts=(paths.UNIT,),
        secrets=(paths.credential(paths.HUB_TOKEN),),
        weights=weights_to_survey(wishes),
        deployments=paths.DEPLOYMENTS,
        version=VERSION,
    )


def wishes_of(host: Host) -> Wishes | None:
    """Return the wishes of a host's data, or None where it has none. Raises WishesError."""
    data = host.data.get(DATA_KEY)
    return None if data is None else read_wishes(data, host.name)


def fail(host: Host, sentence: str) -> None:
    """Mark a node as failed, with a sentence that says why; the others go on."""
    say_failed(host, sentence)
    if isinstance(host, ContextObject):
        host = host._get_module()  # type: ignore[no-untyped-call]
    host.state.fail_hosts({host})  # type: ignore[no-untyped-call]


def survey_of(host: Host, wishes: Wishes | None) -> Survey | None:
    """Return a node's survey, read once; None where it failed (the node is then marked)."""
    return read_survey(host, request_for(wishes))


def plan_node(host: Host, wishes: Wishes, options: Options) -> NodePlan | None:
    """Return the plan of one node, or None where it could not be surveyed."""
    survey = survey_of(host, wishes)
    if survey is None:
        return None
    return plan_of(survey, wishes, options, now=time.time())


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
    )
    if now is None:
        return plan
    return replace(plan, cautions=(*plan.cautions, *clock_cautions(survey, now)))


def refuse(host: Host, refusals: Iterable[Refusal]) -> None:
    """Mark a node as refused, each reason in a line; the others go on."""
    said = list(refusals)
    outcome_of(host).refusals.extend(said)
    for one in said:
        logger.error(
            f"{host.print_prefix}{one.code}: {one.seen}. Needed: {one.needed}. {one.advice}"
        )
    real = host._get_module() if isinstance(host, ContextObject) else host  # type: ignore[no-untyped-call]
    real.state.fail_hosts({real})


def apply_plan(plan: NodePlan) -> None:
    """Register the operations that make a plan true, service by service.

    Everything slow is done while the old service serves; the switch comes last.
    """
    if plan.hub_token is not None:
        credentials.hub_token(plan=plan, name="Write the hub token")
    for one in plan.services:
        apply_service(plan, one)
    if plan.changes:
        apply.released(name="Give the apply lock back")


SWITCH = {"start": "Start", "restart": "Restart", "wait": "Wait for"}
"""What people read of a switch, by what it does with the unit."""


def apply_service(plan: NodePlan, one: ServicePlan) -> None:
    """Register the operations of one service."""
    image.present(plan=one, name=f"Fetch the image of {one.name}")
    weights.present(plan=one, name=f"Fetch and check the weights of {one.name}")
    files.deployment(plan=one, name=f"Write the deployment of {one.name}")
    if one.launch is not None and one.launch.service.keys:
        credentials.keys(plan=one, name=f"Write the keys of {one.name}")
    canary.passed(plan=one, name=f"Try CUDA in the image of {one.name}")
    service.switched(plan=one, name=f"{SWITCH.get(one.act, 'Set up')} {one.name}")
    if one.act != "none" and one.launch is not None:
        service.verified(
            service=one.launch.service,
            release=one.decision.release or "",
            number=one.number,
            record={
                "deployment": one.number,
                "release": one.decision.release,
                "image": one.launch.image,
                "build": one.launch.build.key,
            },
            name=f"Verify {one.name}",
        )


def verify_node(host: Host, only: tuple[str, ...] = ()) -> None:
    """Register the verify of every service that is deployed on a node."""
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
            service=one.service, release=one.release, number=one.number, name=f"Verify {name}"
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
    service.removed(services=only or there, take=take or Take(), name="Remove")
    apply.released(name="Give the apply lock back")


def _reload_is_allowed(host: Host) -> bool:
    """Say whether the inventory allows it; one that is wrong or says nothing does not."""
    try:
        wishes = wishes_of(host)
    except WishesError:
        return False
    return wishes is not None and wishes.allow_daemon_reload


# --- for the deploys under plain pyinfra


def target_of_pyinfra() -> str | None:
    """Return the inventory that pyinfra was called with, or None where it was not.

    pyinfra tells a deploy everything but the path of its inventory, so that is
    looked up among its own arguments.
    """
    # The inventory stands before the deploy; options with a value may stand before it.
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    here = Path(__file__).resolve().parent
    before = list(takewhile(lambda word: Path(word).resolve().parent != here, words))
    named = [word for word in before if Path(word).is_file() or word.startswith("@")]
    return next(iter(named or before[-1:]), None)


_reader = Reader(logger.warning)


def plan_under_pyinfra(host: Host) -> NodePlan | None:
    """Return the plan that ``deploys/bootstrap.py`` applies,
    or None: the node is then marked."""
    try:
        wishes = wishes_of(host)
        target = target_of_pyinfra()
        lock = read_lock(lock_path(target)) if target else None
    except WishesError as error:
        for message in error.messages:
            fail(host, message)
        return None
    except LockError as error:
        fail(host, str(error))
        return None
    if wishes is None:
        fail(host, f"no data under the key {DATA_KEY!r}: see inventories/example.py")
        return None
    secrets = read_secrets(_reader, wishes)
    for sentence in secrets.unread:
        fail(host, sentence)
    if secrets.unread:
        return None
    plan = plan_node(host, wishes, Options(lock, secrets={host.name: secrets}))
    if plan is None:
        return None
    if plan.refusals:
        refuse(host, plan.refusals)
        return None
    if plan.unresolved:
        refuse(
            host,
            [
                Refusal(
                    "LOCK_UNRESOLVED",
                    one,
                    "an image by digest and a model by commit",
                    f"make the lock first: sglang-node lock {target or 'INVENTORY'}",
                )
                for one in plan.unresolved
            ],
        )
        return None
    return plan
