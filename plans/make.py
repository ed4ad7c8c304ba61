"""Makes the plan of a node: decisions, launch, and the difference to the survey."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from facts.records import ServiceState, Survey, known
from locks.records import Lock, LockedImage, LockedModel
from plans import paths, text
from plans.build import Build
from plans.checks import argument_checks, environment_checks
from plans.deadlines import deadlines
from plans.decision import Decision
from plans.deployment import (
    Launch,
    PlannedFile,
    deployment_files,
    drop_in_file,
    plan_file,
    unit_file,
)
from plans.gpus import capability_of
from plans.plan import Change, Guard, NodePlan, ServicePlan
from plans.refusals import Caution, Refusal
from plans.runtime import decide
from plans.server_yaml import ArgumentRefused, server_arguments
from plans.wishes import DEFAULT_OUTPUT_CAP, Service, Wishes

UNPACKED = 3.5
"""Bytes of disk that a pull needs for each compressed byte: the download and what it unpacks to.

Inferred: CUDA images unpack to about 2.5 times their compressed size.
"""


@dataclass
class _Findings:
    """What is gathered on the way: everything is said, not the first of it."""

    refusals: list[Refusal] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    def refuse(self, code: str, service: str | None, seen: str, needed: str, advice: str) -> None:
        self.refusals.append(Refusal(code, seen, needed, advice, service))

    def change(self, service: str | None, kind: Any, what: str, why: str, diff: str = "") -> None:
        self.changes.append(Change(kind, what, why, service, diff))


def make_plan(
    survey: Survey, wishes: Wishes, lock: Lock | None, version: str, *, discard_edits: bool = False
) -> NodePlan:
    """Return the plan of one node.

    ``lock`` is None where none was made yet: the plan then names what is
    unresolved. ``version`` is the toolkit's. ``discard_edits`` is the
    operator's word that managed files edited by hand may be replaced.
    """
    found = _Findings()
    plans = [
        _plan_service(survey, service, wishes, lock, version, discard_edits, found)
        for service in wishes.services
    ]
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
        reasons=tuple(_reasons(plans)),
        changes=() if refusals else tuple(found.changes),
        unresolved=tuple(dict.fromkeys(found.unresolved)),
        survey=survey,
    )


def _reasons(plans: Iterable[ServicePlan]) -> Iterable[str]:
    several = len(list(plans)) > 1
    said: dict[str, None] = {}
    for plan in plans:
        lines = [plan.decision.frozen] if plan.decision.frozen else []
        lines += plan.decision.reasons
        lines += [
            f"leaves out GPU {gpu.index} ({gpu.name}): {gpu.reason}" for gpu in plan.decision.left_out
        ]
        if plan.decision.access and not plan.decision.refusals:
            lines.append(plan.decision.access.reason)
        if plan.launch:
            lines.append(f"a stop may take {plan.launch.limits.arithmetic}")
        for line in lines:
            said[f"{plan.name}: {line}" if several else line] = None
    return said


def _plan_service(
    survey: Survey,
    service: Service,
    wishes: Wishes,
    lock: Lock | None,
    version: str,
    discard_edits: bool,
    found: _Findings,
) -> ServicePlan:
    decision = decide(survey, service, wishes)
    found.refusals += decision.refusals
    found.cautions += decision.cautions
    plan = ServicePlan(service.name, decision)
    state = survey.services.get(service.name, ServiceState(service.name))

    _check_host_for(service, survey, state, found)
    server = _check_wishes_for(service, decision, lock, found)
    if service.output_cap is None:
        found.refuse(
            "UNBOUNDED_STOP",
            service.name,
            "no output_cap: an answer may be as long as the model's context, so no deadline of a "
            "stop can be worked out",
            "the longest answer, in tokens, that the server shall give",
            f"set output_cap, for example {DEFAULT_OUTPUT_CAP}",
        )
        return plan
    image = _locked_image(service, decision, wishes, lock, survey, found)
    model = _locked_model(service, lock, found)
    if server is None or image is None or not (service.is_local or model):
        if not decision.refusals:
            _pending_changes(service, state, found)
        return plan

    launch = Launch(
        service=service,
        wishes=wishes,
        decision=decision,
        image=image.run,
        limits=deadlines(service, service.output_cap),
        output_cap=service.output_cap,
        build=_build(survey, service, decision, image.locked, model),
        server=server,
        version=version,
    )
    return _difference(
        replace(plan, launch=launch), launch, image, survey, state, discard_edits, found
    )


# --- what the node and the wishes must allow


def _check_host_for(
    service: Service, survey: Survey, state: ServiceState, found: _Findings
) -> None:
    if state.unit_file_state == "masked" or state.load_state == "masked":
        unit = paths.unit_of(service.name)
        found.refuse(
            "UNIT_MASKED",
            service.name,
            f"{unit} is masked",
            "a unit that may start",
            f"systemctl unmask {unit}",
        )
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
    ours = _own_port(state)
    if known(survey.listeners) and ours != service.port:
        for listener in survey.listeners:
            if listener.port == service.port:
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


def _own_port(state: ServiceState) -> int | None:
    if state.active_state not in ("active", "activating", "deactivating", "reloading"):
        return None
    port = state.launch.get("SGLANG_PORT", "")
    return int(port) if port.isdigit() else None


def _check_wishes_for(
    service: Service, decision: Decision, lock: Lock | None, found: _Findings
) -> Mapping[str, Any] | None:
    if service.address not in ("127.0.0.1", "::1"):
        found.cautions.append(
            Caution(
                "OPEN_WITHOUT_KEY",
                f"{service.address} port {service.port} is reachable without a key from wherever "
                "this node is; ports that Docker publishes are not stopped by ufw",
                service.name,
            )
        )
    if decision.release is None:
        return None
    given, refusals, cautions = argument_checks(service, decision.release)
    more, warned = environment_checks(service, decision.release)
    found.refusals += [*refusals, *more]
    found.cautions += [*cautions, *warned]
    if refusals or more:
        return None
    revision = None
    if not service.is_local and lock is not None:
        model = lock.model(service.model, service.revision or "main")
        revision = model.commit if model else None
    try:
        return server_arguments(service, decision.release, revision, given)
    except ArgumentRefused as error:
        found.refuse(
            "ARGUMENT_REFUSED",
            service.name,
            str(error),
            "a value that reaches the server as written",
            f"change arguments of {service.name} in the inventory",
        )
        return None


# --- what the lock says


@dataclass(frozen=True)
class _Image:
    run: str  # what docker run gets
    locked: LockedImage
    present: bool


def _locked_image(
    service: Service,
    decision: Decision,
    wishes: Wishes,
    lock: Lock | None,
    survey: Survey,
    found: _Findings,
) -> _Image | None:
    tag = decision.image
    if tag is None:
        return None
    locked = lock.image(tag) if lock is not None else None
    if locked is None:
        why = lock.why_not(tag) if lock is not None else None
        found.unresolved.append(
            f"{tag}: {why.why} ({why.command})" if why else f"{tag}: not locked"
        )
        return None
    architecture = survey.host.architecture
    if not known(architecture):
        return None
    platform = locked.for_architecture(architecture)
    if platform is None:
        found.refuse(
            "IMAGE_MISSING_ARCHITECTURE",
            service.name,
            f"{tag} is there for {', '.join(locked.architectures()) or 'no architecture that is known'}",
            f"an image for {architecture}",
            "name another release or image, then run: sglang-node lock",
        )
        return None
    pinned = text.short_reference(locked)
    by_config = platform.config_digest
    here = {image.digest for image in survey.docker.images}
    ids = {image.config_digest for image in survey.docker.images}
    pulled = locked.index_digest in here or platform.manifest_digest in here
    loaded = bool({by_config, platform.manifest_digest, locked.index_digest} & ids)
    # An image that was loaded from a file has no digest of a registry: it is the same
    # image where its configuration is. What the service runs already is kept.
    running = survey.services.get(service.name, ServiceState(service.name)).launch.get(
        "SGLANG_IMAGE"
    )
    if running == by_config and loaded:
        return _Image(by_config, locked, present=True)
    if not pulled and loaded:
        return _Image(by_config, locked, present=True)
    if not pulled:
        _check_space(service, locked, platform.compressed_bytes, survey, found)
    return _Image(pinned, locked, present=pulled)


def _check_space(
    service: Service, locked: LockedImage, compressed: int, survey: Survey, found: _Findings
) -> None:
    store = next(
        (d for d in (survey.docker.image_store_dir, survey.docker.root_dir) if known(d)), None
    )
    space = survey.spaces.get(store) if store else None
    if space is None or not known(space.free_bytes):
        found.cautions.append(
            Caution(
                "SPACE_UNKNOWN",
                f"free space of Docker's store ({store}) could not be read",
                service.name,
            )
        )
        return
    needed = int(compressed * UNPACKED)
    if space.free_bytes < needed:
        found.refuse(
            "DISK_FULL",
            service.name,
            f"{text.size(space.free_bytes)} free on {space.mount} for Docker's store {store}",
            f"about {text.size(needed)} for {locked.asked} ({text.size(compressed)} compressed)",
            "make room: docker image prune, or move Docker's data-root to a larger disk",
        )


def _locked_model(service: Service, lock: Lock | None, found: _Findings) -> LockedModel | None:
    if service.is_local:
        return None
    revision = service.revision or "main"
    model = lock.model(service.model, revision) if lock is not None else None
    if model is None:
        what = f"{service.model}@{revision}"
        why = lock.why_not(what) if lock is not None else None
        found.unresolved.append(
            f"{what}: {why.why} ({why.command})" if why else f"{what}: not locked"
        )
    return model


def _pending_changes(service: Service, state: ServiceState, found: _Findings) -> None:
    verb = "restart" if state.active_state == "active" else "start"
    what = paths.unit_of(service.name)
    found.change(service.name, "image", "the image", "fetched by its digest, once the lock has it")
    found.change(service.name, "deployment", f"{service.name}", "written once the lock is made")
    found.change(service.name, verb, what, "with the new deployment")


def _build(
    survey: Survey,
    service: Service,
    decision: Decision,
    locked: LockedImage,
    model: LockedModel | None,
) -> Build:
    capabilities = {c for c in map(capability_of, decision.gpus) if known(c)}
    architecture = survey.host.architecture
    driver = survey.nvidia.driver_version
    quantization = service.arguments.get("quantization")
    return Build(
        runtime=locked.index_digest,
        architecture=architecture if known(architecture) else "unknown",
        capabilities=tuple(sorted(capabilities)),
        driver_major=driver.split(".")[0] if known(driver) else None,
        tp_size=service.tp_size,
        model=f"{model.repo}@{model.commit}" if model else service.model,
        quantization=str(quantization) if quantization is not None else None,
    )


# --- the difference to what is there


def _difference(
    plan: ServicePlan,
    launch: Launch,
    image: _Image,
    survey: Survey,
    state: ServiceState,
    discard_edits: bool,
    found: _Findings,
) -> ServicePlan:
    name = plan.name
    current = state.current if known(state.current) else None
    previous = state.previous if known(state.previous) else None
    unit, drop_in = unit_file(), drop_in_file(launch)
    _check_edits(survey, state, (unit, drop_in), discard_edits, launch, found)

    number, new = current or 0, True
    files: tuple[PlannedFile, ...] = ()
    if current is not None:
        files = deployment_files(launch, current)
        new = any(not _same(survey, file) for file in files)
    old = files
    if new:
        number = max(current or 0, previous or 0) + 1
        files = deployment_files(launch, number)
        why = "nothing is deployed yet" if current is None else _what_differs(survey, old)
        found.change(
            name,
            "deployment",
            paths.Deployment(name, number).directory,
            why,
            _diffs(survey, old or files),
        )
    if not image.present:
        found.change(
            name,
            "image",
            image.run,
            f"{launch.decision.image} is not in Docker's store of this node",
        )

    new_unit = unit if not _same(survey, unit) else None
    new_drop_in = drop_in if not _same(survey, drop_in) else None
    unit_said = any(change.what == unit.path for change in found.changes)
    if new_unit and not unit_said:
        found.change(name, "unit", unit.path, _why_file(survey, unit), _diffs(survey, (unit,)))
    if new_drop_in:
        found.change(
            name, "drop-in", drop_in.path, _why_file(survey, drop_in), _diffs(survey, (drop_in,))
        )
    reload = bool(new_unit or new_drop_in or state.need_daemon_reload is True)
    if reload:
        found.change(
            name,
            "daemon-reload",
            "systemctl daemon-reload",
            "the unit or its drop-in changes"
            if new_unit or new_drop_in
            else "systemd still holds an older unit than the file",
        )
        _warn_of_reload(survey, name, found)
    enable = state.unit_file_state != "enabled"
    if enable:
        found.change(name, "enable", paths.unit_of(name), "it shall start with the node")

    act, why, ready = _act(state, launch, new or new_unit is not None or new_drop_in is not None)
    if act != "none":
        kind = "verify" if act in ("wait", "verify") else act
        found.change(name, kind, paths.unit_of(name), why)
    replaced = [f for f in (new_unit, new_drop_in) if f]
    return replace(
        plan,
        number=number,
        files=(*files, plan_file(launch, number, files)),
        new_deployment=new,
        unit=new_unit,
        drop_in=new_drop_in,
        pull=None if image.present else image.run,
        daemon_reload=reload,
        enable=enable,
        act=act,
        ready=ready,
        guard=Guard(
            current=current,
            main_pid=state.main_pid if known(state.main_pid) else 0,
            invocation=state.invocation_id if known(state.invocation_id) else "",
            sums={file.path: _sum(survey, file.path) for file in replaced},
            port_free=None if _own_port(state) == launch.service.port else launch.service.port,
        ),
    )


def _act(state: ServiceState, launch: Launch, changed: bool) -> tuple[Any, str, bool]:
    active = state.active_state
    if active in ("active", "activating", "reloading"):
        if changed:
            return (
                "restart",
                "with the new deployment; requests in flight are finished first",
                False,
            )
        if active != "active":
            return "wait", "it is starting: waited for, then verified", False
        answer = state.answer
        if known(answer) and answer.ready == 200 and known(answer.model_names):
            if launch.service.public_name in answer.model_names:
                return "none", "", True
            return "verify", f"it answers with the model {', '.join(answer.model_names)}", False
        seen = answer.ready if known(answer) else answer
        return "verify", f"it is active, but its ready endpoint says {seen}", False
    if active == "deactivating":
        return "start", "it is stopping: started again once it has", False
    result = f" ({state.result})" if known(state.result) and state.result != "success" else ""
    return "start", f"it is {active if known(active) else 'not there yet'}{result}", False


def _same(survey: Survey, file: PlannedFile) -> bool:
    there = survey.files.get(file.path)
    return there is not None and there.sha256 == file.sha256 and there.mode == file.mode


def _sum(survey: Survey, path: str) -> str:
    there = survey.files.get(path)
    return there.sha256 if there is not None and known(there.sha256) else "absent"


def _why_file(survey: Survey, file: PlannedFile) -> str:
    return (
        "not there yet" if _sum(survey, file.path) == "absent" else "differs from what it should be"
    )


def _what_differs(survey: Survey, files: Iterable[PlannedFile]) -> str:
    names = [file.path.rsplit("/", 1)[1] for file in files if not _same(survey, file)]
    return f"{', '.join(names)} of the current deployment differ{'s' if len(names) == 1 else ''}"


def _diffs(survey: Survey, files: Iterable[PlannedFile]) -> str:
    out = []
    for file in files:
        if _same(survey, file):
            continue
        there = survey.files.get(file.path)
        before = there.text if there is not None and known(there.text) else ""
        if file.mode == "0600":
            out.append(f"--- {file.path}: only root reads it; its checksum changes\n")
            continue
        out += difflib.unified_diff(
            before.splitlines(keepends=True),
            file.text.splitlines(keepends=True),
            file.path if before else "/dev/null",
            file.path,
        )
    return "".join(out)


def _check_edits(
    survey: Survey,
    state: ServiceState,
    planned: tuple[PlannedFile, ...],
    discard_edits: bool,
    launch: Launch,
    found: _Findings,
) -> None:
    """Refuse where a file is neither as we wrote it nor as it should become: someone edited it."""
    written = written_files(state)
    wanted = {file.path: file.sha256 for file in planned}
    for path, sha256 in written.items():
        there = survey.files.get(path)
        if there is None or not known(there.sha256) or there.sha256 in (sha256, wanted.get(path)):
            continue
        if path == paths.UNIT and _written_by_another(survey, path, there.sha256):
            continue
        if discard_edits:
            found.cautions.append(
                Caution(
                    "FILE_EDITED", f"{path} was edited by hand; the edit is discarded", state.name
                )
            )
            continue
        found.refuse(
            "FILE_EDITED",
            state.name,
            f"{path} is not as it was written (edited by hand)",
            "a managed file as the toolkit wrote it",
            f"keep the edit as a drop-in (systemctl edit {paths.unit_of(state.name)}) or in the "
            "inventory, then apply with --discard-edits",
        )


def written_files(state: ServiceState) -> dict[str, str]:
    """Return the checksum of each file as the toolkit wrote it, from the plan of a deployment."""
    if not known(state.plan):
        return {}
    try:
        files = json.loads(state.plan)["files"]
        return {str(path): str(sha256) for path, sha256 in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _written_by_another(survey: Survey, path: str, sha256: str) -> bool:
    return any(written_files(other).get(path) == sha256 for other in survey.services.values())


def _warn_of_reload(survey: Survey, service: str, found: _Findings) -> None:
    legacy = [c for c in survey.docker.gpu_containers if c.mode == "legacy"]
    driver = survey.docker.cgroup_driver
    if legacy and driver == "systemd":
        found.cautions.append(
            Caution(
                "LEGACY_GPU_CONTAINERS",
                "daemon-reload takes the GPUs from running containers in Docker's legacy mode: "
                + ", ".join(container.name for container in legacy),
                service,
            )
        )
