"""Makes the plan of a node: decisions, launch, and the difference to the survey."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from facts.records import ServiceState, Survey, known
from locks.records import Lock, LockedModel
from plans import paths
from plans.ahead import ahead, kernels_of
from plans.backends import backend_refusals
from plans.build import Build
from plans.bundle import Bundle
from plans.bundled import bundled_environment, check_bundle, check_room, lacking, taken
from plans.checks import argument_checks, environment_checks, split_arguments
from plans.closed import check_closed
from plans.deadlines import deadlines
from plans.decision import Decision
from plans.deployment import Launch
from plans.difference import Words, difference, own_port
from plans.doorplan import plan_door
from plans.drift import overlap
from plans.drifted import check_drift
from plans.findings import Findings
from plans.fit import fit
from plans.gpus import capability_of
from plans.journal import journal_filter
from plans.keys import hub_token_change, key_checks, same_user, unread
from plans.locked import locked_image, locked_model, model_in
from plans.meaning import meaning
from plans.network import beside_the_firewall
from plans.pairchecks import check_half, check_transfer
from plans.places import place_findings
from plans.plan import ChangeKind, NodePlan, ServicePlan
from plans.reads import read_by_arguments
from plans.refusals import Caution
from plans.runtime import decide
from plans.secrets import NONE, NodeSecrets
from plans.server_yaml import ArgumentRefused, check_words, server_arguments
from plans.sharing import sharing
from plans.storage import storage_cautions
from plans.weights import (
    check_other_models,
    named_by_arguments,
    planned_weights,
)
from plans.wheel.planned import planned_environment
from plans.wheel.wanted import as_wheel, said_of_wishes
from plans.wishes import DEFAULT_OUTPUT_CAP, Service, Wishes


@dataclass(frozen=True)
class _Given:
    """What the plan of a node is made from."""

    survey: Survey
    wishes: Wishes
    lock: Lock | None
    version: str
    words: Words
    secrets: NodeSecrets
    bundle: Bundle | None


def make_plan(
    survey: Survey,
    wishes: Wishes,
    lock: Lock | None,
    version: str,
    *,
    discard_edits: bool = False,
    allow_daemon_reload: bool = False,
    secrets: NodeSecrets = NONE,
    bundle: Bundle | None = None,
    with_door: bool = True,
) -> NodePlan:
    """Return the plan of one node.

    ``lock`` is None where none was made yet: the plan then names what is
    unresolved. ``version`` is the toolkit's. ``discard_edits`` is the
    operator's word that managed files edited by hand may be replaced;
    ``allow_daemon_reload`` that systemd may reload also where containers lose
    their GPUs by it (the wishes may say so too). ``secrets`` are the node's as
    the controller read them. ``bundle``: what is missing comes from it, never over the network.
    ``with_door``: False where the wishes are cut to some services: the door stays as it is.
    """
    found = Findings()
    words = Words(discard_edits, allow_daemon_reload or wishes.allow_daemon_reload)
    if bundle is not None and not check_bundle(bundle, survey, found):
        bundle = None  # refused as a whole
    given = _Given(survey, wishes, lock, version, words, secrets, bundle)
    unread_ones = unread(wishes, secrets)
    found.cautions += [Caution("SECRET_UNREAD", sentence) for sentence in unread_ones]
    hub_token = hub_token_change(survey, wishes, secrets, found)
    wanted = {service.name for service in wishes.services}
    plans = [_plan_service(service, given, found) for service in wishes.services]
    shared = sharing(survey, [(s, p.decision) for s, p in zip(wishes.services, plans, strict=True)])
    found.refusals += shared.refusals
    found.cautions += shared.cautions
    found.cautions += same_user([one for one in plans if one.launch is not None])
    for name, state in sorted(survey.services.items()):
        if name not in wanted and known(state.current):
            text = (
                f"{name} is deployed here and is not in the inventory: it keeps its GPUs and its port; "
                f"to take it away: sglang-node remove {survey.node} --service {name}"
            )
            found.cautions.append(Caution("SERVICE_LEFT", text))
    door = None
    if with_door:
        door = plan_door(wishes, survey, secrets, found, words=words, bundle=bundle)
    if bundle is not None:
        lacking(found)
        takes = [one.bundle for one in plans] + ([door.bundle] if door else [])
        check_room([one for one in takes if one], survey, found)
    if found.changes:
        refused, said = place_findings(survey, wishes)
        found.refusals += refused
        found.cautions += said
    # The unit is one file for all services: it is planned with the first that needs it.
    refusals = tuple(dict.fromkeys(found.refusals))
    first = plans[0].decision
    kind = "refused" if refusals else first.kind
    return NodePlan(
        node=survey.node,
        decision=kind,
        release=first.release,
        image=next((p.decision.image for p in plans if p.decision.image), None),
        services=tuple(plans),
        refusals=refusals,
        cautions=tuple(dict.fromkeys(found.cautions)),
        reasons=(*_reasons(plans), *shared.lines, *(door.lines if door else ())),
        changes=() if refusals else tuple(found.changes),
        unresolved=tuple(dict.fromkeys(found.unresolved)),
        hub_token=hub_token,
        unread=unread_ones,
        door=door,
        survey=survey,
    )


def _reasons(plans: Iterable[ServicePlan]) -> Iterable[str]:
    several = len(list(plans)) > 1
    said: dict[str, None] = {}
    for plan in plans:
        lines = [plan.decision.frozen] if plan.decision.frozen else []
        lines += plan.decision.reasons
        lines += [
            f"leaves out GPU {gpu.index} ({gpu.name}): {gpu.reason}"
            for gpu in plan.decision.left_out
        ]
        if plan.decision.access and not plan.decision.refusals:
            lines.append(plan.decision.access.reason)
        if plan.environment and plan.environment.departs:
            lines.append(plan.environment.departs)
        if plan.environment and plan.environment.cuda_home:
            lines.append(plan.environment.cuda_home.reason)
        lines += plan.meaning
        lines += plan.ahead.lines if plan.ahead else ()
        lines += plan.fit.lines if plan.fit else ()
        if plan.launch:
            lines.append(f"a stop may take {plan.launch.limits.arithmetic}")
        for line in lines:
            said[f"{plan.name}: {line}" if several else line] = None
    return said


def _plan_service(service: Service, given: _Given, found: Findings) -> ServicePlan:
    survey, wishes, lock = given.survey, given.wishes, given.lock
    names = {one.name for one in wishes.services}
    # What a service that is not wanted holds does not come free.
    kept = replace(survey, services={n: s for n, s in survey.services.items() if n in names})
    decision = decide(kept, service, wishes)
    if decision.runtime == "wheel":
        found.cautions += said_of_wishes(service)
        service = as_wheel(service)
    found.refusals += decision.refusals
    found.cautions += decision.cautions
    fits = fit(kept, service, decision, model_in(lock, service))
    found.refusals += fits.refusals
    found.cautions += fits.cautions
    plan = ServicePlan(service.name, decision, fit=fits)
    state = survey.services.get(service.name, ServiceState(service.name))

    _check_host_for(service, survey, state, found)
    check_closed(service, wishes, survey, state, found)
    check_half(service, wishes, found)
    found.cautions += storage_cautions(survey, wishes, service, decision.release)
    server = _check_wishes_for(service, decision, lock, survey, found)
    image, environment = None, None
    if decision.runtime == "wheel":
        environment = planned_environment(service, wishes, decision, lock, survey, found)
        if environment is not None:
            check_transfer(service, environment.requirements, found)
    else:
        image = locked_image(service, wishes, decision, lock, survey, found, given.bundle)
    model = locked_model(service, lock, found)
    check_other_models(service, wishes, survey, found)
    plan = replace(plan, weights=planned_weights(service, wishes, model, survey, found))
    if given.bundle is not None:
        one, built_from = image.bundled if image else None, None
        if environment is not None:
            environment, built_from = bundled_environment(
                given.bundle, service.name, environment, survey, found
            )
        took = taken(given.bundle, service.name, one, plan.weights, survey, found, built_from)
        plan = replace(plan, bundle=took)
    # An embedding or a score is no text: it has no length to be limited.
    cap = service.output_cap or (None if service.kind == "generate" else 1)
    if cap is None:
        found.refuse(
            "UNBOUNDED_STOP",
            service.name,
            "no output_cap: an answer may be as long as the model's context, so no deadline of a "
            "stop can be worked out",
            "the longest answer, in tokens, that the server shall give",
            f"set output_cap, for example {DEFAULT_OUTPUT_CAP}",
        )
        return plan
    made_of = environment.key if environment else image.locked.index_digest if image else None
    if server is None or made_of is None or not (service.is_local or model):
        if not decision.refusals:
            _pending_changes(service, decision, state, found)
        return plan

    launch = Launch(
        service=service,
        wishes=wishes,
        decision=decision,
        image=image.run if image else "",
        limits=deadlines(service, cap),
        output_cap=cap,
        build=_build(survey, service, decision, made_of, model),
        server=server,
        version=given.version,
        other_models=bool(named_by_arguments(service)),
        read_paths=read_by_arguments(service),
        model_bytes=fits.read_bytes,
        journal_filter=journal_filter(service, survey.systemd_version),
        secrets=given.secrets,
        environment=environment,
    )
    plan = replace(plan, launch=launch, environment=environment, meaning=meaning(launch, state))
    plan = difference(plan, launch, image, survey, state, given.words, found)
    kernels = kernels_of(launch, state, new_deployment=plan.new_deployment)
    return replace(plan, ahead=ahead(plan, state, survey, model), kernels=kernels)


# --- what the node and the wishes must allow


def _check_host_for(service: Service, survey: Survey, state: ServiceState, found: Findings) -> None:
    if state.unit_file_state == "masked" or state.load_state == "masked":
        unit = paths.unit_of(service.name)
        found.refuse(
            "UNIT_MASKED",
            service.name,
            f"{unit} is masked",
            "a unit that may start",
            f"systemctl unmask {unit}",
        )
    check_drift(service, survey, state, found)
    if service.is_local:
        space = survey.spaces.get(service.model)
        if space is not None and not space.exists:
            found.refuse(
                "MODEL_PATH_MISSING",
                service.name,
                f"{service.model} is not there (the nearest that is: {space.existing})",
                "the model's directory on the node",
                f"copy the model to {service.model}, mount it, or name a model of the hub",
            )
    ours = own_port(state)
    if not known(survey.listeners) and ours != service.port:
        text = f"who listens on which port could not be read ({survey.listeners}): port {service.port} may be taken; see ss -ltnp"
        found.cautions.append(Caution("PORT_UNKNOWN", text, service.name))
    if known(survey.listeners) and ours != service.port:
        for listener in survey.listeners:
            if listener.port == service.port and overlap(listener.address, service.address):
                who = listener.process if known(listener.process) else "a process"
                pid = f" (pid {listener.pid})" if known(listener.pid) else ""
                found.refuse(
                    "PORT_TAKEN",
                    service.name,
                    f"{who}{pid} listens on {listener.address} port {listener.port}",
                    f"port {service.port} free for {service.name}",
                    f"give {service.name} another port, or stop that process: "
                    f"ss -ltnp 'sport = :{service.port}'",
                )
                break


def _check_wishes_for(
    service: Service, decision: Decision, lock: Lock | None, survey: Survey, found: Findings
) -> Mapping[str, Any] | None:
    if not ipaddress.ip_address(service.address).is_loopback and service.api_key is None:
        found.cautions.append(
            Caution(
                "OPEN_WITHOUT_KEY",
                f"{service.address} port {service.port} is reachable without a key from wherever "
                f"this node is{beside_the_firewall(service)}",
                service.name,
            )
        )
    if decision.release is None:
        return None
    # What a plain install of packages gets wrong, the lock has right.
    runtime = decision.runtime if decision.runtime == "image" else None
    given, refusals, cautions = argument_checks(service, decision.release, runtime)
    more, warned = environment_checks(service, decision.release)
    found.refusals += [*refusals, *more, *backend_refusals(service, decision)]
    found.cautions += [*cautions, *warned]
    if not key_checks(service, decision.release, survey, found, runtime) or refusals or more:
        return None
    model = None if service.is_local else model_in(lock, service)
    revision = model.commit if model else None
    try:
        server = server_arguments(service, decision.release, revision, given)
        _, on_line = split_arguments(server, decision.release)
        check_words(on_line)
        return server
    except ArgumentRefused as error:
        found.refuse(
            "ARGUMENT_REFUSED",
            service.name,
            str(error),
            "a value that reaches the server as written",
            f"change arguments of {service.name} in the inventory",
        )
        return None


def _pending_changes(
    service: Service, decision: Decision, state: ServiceState, found: Findings
) -> None:
    verb: ChangeKind = "restart" if state.active_state == "active" else "start"
    if decision.runtime == "wheel":
        found.change(service.name, "environment", "the environment", "built once the lock has it")
    else:
        why = "fetched by its digest, once the lock has it"
        found.change(service.name, "image", "the image", why)
    found.change(service.name, "deployment", f"{service.name}", "written once the lock is made")
    found.change(service.name, verb, paths.unit_of(service.name), "with the new deployment")


def _build(
    survey: Survey,
    service: Service,
    decision: Decision,
    made_of: str,
    model: LockedModel | None,
) -> Build:
    capabilities = {c for c in map(capability_of, decision.gpus) if known(c)}
    architecture = survey.host.architecture
    driver = survey.nvidia.driver_version
    quantization = service.arguments.get("quantization")
    return Build(
        runtime=made_of,
        architecture=architecture if known(architecture) else "unknown",
        capabilities=tuple(sorted(capabilities)),
        driver_major=driver.split(".")[0] if known(driver) else None,
        tp_size=service.tp_size,
        model=f"{model.repo}@{model.commit}" if model else service.model,
        quantization=str(quantization) if quantization is not None else None,
    )
