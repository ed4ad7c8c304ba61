"""The difference of a service's plan to what is on the node: changes, edits, the act."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from facts.records import ABSENT, ServiceState, Survey, known
from plans import drift, hooks, paths
from plans.deployment import (
    Launch,
    PlannedFile,
    deployment_files,
    drop_in_file,
    plan_file,
    unit_files,
)
from plans.findings import Findings
from plans.keys import key_change, planned_key_file
from plans.locked import Image
from plans.managed import has_sum, seen_sum, where_to_keep, written_by, written_files
from plans.pastdeployment import has_served
from plans.plan import Act, ChangeKind, Guard, ServicePlan
from plans.refusals import Caution
from plans.reload import check_reload, stops_first
from plans.unended import came_from
from plans.wheel.launch import wheel_unit_file


def own_port(state: ServiceState) -> int | None:
    if state.active_state not in ("active", "activating", "deactivating", "reloading"):
        return None
    port = state.launch.get("SGLANG_PORT", "")
    return int(port) if re.fullmatch("[0-9]{1,5}", port) else None


@dataclass(frozen=True)
class Words:
    """What the operator gave their word for."""

    discard_edits: bool  # managed files that were edited by hand may be replaced
    allow_daemon_reload: bool  # also where running containers lose their GPUs by it


def difference(
    plan: ServicePlan,
    launch: Launch,
    image: Image | None,
    survey: Survey,
    state: ServiceState,
    words: Words,
    found: Findings,
) -> ServicePlan:
    name = plan.name
    linked = state.current if known(state.current) else None
    nowhere = drift.leads_nowhere(state)
    current = linked if nowhere is None else None
    previous = state.previous if known(state.previous) else None
    units, drop_in = unit_files(launch), drop_in_file(launch)
    removed = left_by_another(survey, state, launch.runtime)
    ours = (*units, drop_in, *([wheel_unit_file(name)] if removed else []))
    files = deployment_files(launch, current) if current is not None else ()
    _check_edits(survey, state, ours, files, words.discard_edits, found)

    number, new, why_anew = current or 0, True, None
    if current is not None:
        why_anew = key_change(survey, launch.service, current, _server_yaml(files), launch.secrets)
        if not written_files(state):
            why_anew = why_anew or f"{paths.PLAN_JSON} of the current deployment cannot be read"
        new = why_anew is not None or any(not _same(survey, file) for file in files)
    old = files
    if new:
        # Where it runs and no link says from which, none that is there may be written over.
        runs = known(state.active_state) and state.active_state not in ("inactive", "failed")
        there = state.deployments if current is None and (runs or nowhere) else ()
        # One that was left by going back is kept: only what has never answered is written over.
        used = [one for one in state.deployments if has_served(state, one)]
        links = [one for one in (current, previous) if one in state.deployments]
        number = max((0, *links, *there, *used)) + 1
        files = deployment_files(launch, number)
        why = nowhere or "nothing is deployed yet"
        if current is not None:
            reasons = [_what_differs(survey, old)] if any(not _same(survey, f) for f in old) else []
            why = "; ".join([*reasons, *([why_anew] if why_anew else [])])
        moved = drift.driver_moved(survey, state)
        if moved is not None:
            why += f"; kernels were built under driver {moved[0]}, and it is {moved[1]} now"
        found.change(
            name,
            "deployment",
            paths.Deployment(name, number).directory,
            why,
            _diffs(survey, old or files),
        )
    missing = image is not None and not image.present
    if image is not None and missing:
        found.change(
            name,
            "image",
            image.run,
            f"{launch.decision.image} is not in Docker's store of this node"
            + (": loaded from the bundle" if image.bundled else ""),
        )
    # What its environment lacks was said by whoever planned it.
    new_units = [file for file in units if not _same(survey, file)]
    new_drop_in = drop_in if not _same(survey, drop_in) else None
    for file in new_units:
        if not _is_said(file.path, found):
            found.change(name, "unit", file.path, _why_file(survey, file), _diffs(survey, (file,)))
    if new_drop_in:
        found.change(
            name, "drop-in", drop_in.path, _why_file(survey, drop_in), _diffs(survey, (drop_in,))
        )
    for path in removed:
        found.change(name, "removed file", path, "the unit of the wheel runtime, which it leaves")
    moved_files = bool(new_units or new_drop_in or removed)
    reload = moved_files or state.need_daemon_reload is True
    enable = state.unit_file_state != "enabled"
    other_runtime = changes_runtime(state, launch.runtime)
    # systemd reloads by itself when a unit is enabled (systemctl(1)). Where the runtime changes
    # what runs is stopped by its own unit, not by the one that takes its place.
    stop_first = (reload or enable) and (stops_first(survey, state) or other_runtime)
    if reload:
        why = (
            "the unit or its drop-in changes"
            if moved_files
            else "systemd still holds an older unit than the file"
        )
        first = "; the service is drained and stopped before it" if stop_first else ""
        found.change(name, "daemon-reload", "systemctl daemon-reload", why + first)
    if state.need_daemon_reload is True:
        found.cautions.append(
            Caution(
                "NEED_DAEMON_RELOAD",
                f"{paths.unit_of(name)} was changed on the node and systemd has not read it again",
                name,
            )
        )
    if reload or enable:
        check_reload(survey, name, words.allow_daemon_reload, found)
    if enable:
        found.change(name, "enable", paths.unit_of(name), "it shall start with the node")

    changed = new or moved_files
    act, why, ready = _act(survey, state, launch, changed, stop_first)
    if act != "none":
        kind: ChangeKind = "verify" if act == "wait" else act
        found.change(name, kind, paths.unit_of(name), why)
    replaced = [file.path for file in (*new_units, *([new_drop_in] if new_drop_in else []))]
    return replace(
        plan,
        number=number,
        files=(*files, plan_file(launch, number, files)),
        new_deployment=new,
        key_file=planned_key_file(launch.service, number, _server_yaml(files), launch.secrets)
        if new
        else None,
        unit=next((file for file in new_units if file == units[0]), None),
        devices_unit=next((file for file in new_units if file != units[0]), None),
        drop_in=new_drop_in,
        removed=removed,
        other_runtime=other_runtime or bool(removed),
        pull=image.run if image is not None and missing and not image.bundled else None,
        environment=launch.environment,
        daemon_reload=reload,
        enable=enable,
        stop_first=stop_first,
        act=act,
        ready=ready,
        guard=Guard(
            current=linked,
            main_pid=state.main_pid if known(state.main_pid) else 0,
            invocation=state.invocation_id if known(state.invocation_id) else "",
            sums={path: seen_sum(survey, path) for path in (*replaced, *removed)},
            port_free=None if own_port(state) == launch.service.port else launch.service.port,
            steady=state.active_state != "activating",
        ),
    )


def changes_runtime(state: ServiceState, runtime: str) -> bool:
    """Say whether a service was last deployed with another runtime than this one."""
    return state.launch.get("SGLANG_RUNTIME", runtime) != runtime


def left_by_another(survey: Survey, state: ServiceState, runtime: str) -> tuple[str, ...]:
    """Return the files that another runtime has left and that would stand in this one's way.

    The wheel runtime's unit is taken before the image runtime's template, which harms nobody.
    """
    path = paths.wheel_unit(state.name)
    there = survey.files.get(path)
    return (path,) if runtime == "image" and there is not None and there.exists else ()


def _server_yaml(files: Iterable[PlannedFile]) -> str:
    return next(file.text for file in files if file.path.endswith(f"/{paths.SERVER_YAML}"))


def _act(
    survey: Survey, state: ServiceState, launch: Launch, changed: bool, stop_first: bool
) -> tuple[Act, str, bool]:
    active = state.active_state
    if active in ("active", "activating", "reloading"):
        reasons = ["with the new deployment"] if changed else drift.restart_reasons(survey, state)
        if launch.environment is not None and launch.environment.build and not reasons:
            reasons = ["its environment is built anew"]
        if stop_first and not reasons:
            reasons = ["it would lose its GPUs by the daemon-reload (legacy mode)"]
        if reasons:
            said = "; ".join(reasons)
            return "restart", f"{said}; requests in flight are finished first", False
        if active != "active":
            return "wait", "it is starting: waited for, then verified", False
        answer = state.answer
        if known(answer) and answer.ready == 200:
            # A rank that follows answers nobody, and with no model's name.
            names = (launch.service.public_name,) if launch.service.follows else answer.model_names
            if known(names) and launch.service.public_name not in names:
                return "verify", f"it answers with the model {', '.join(names)}", False
            if known(names):
                if state.record == ABSENT:
                    return "verify", "no record says that this deployment was verified", False
                if came_from(survey, state) is not None:
                    return "verify", "going back to it was cut, or it did not answer", False
                if hooks.are_to_run(state.record):
                    return "verify", "the hooks after its last verify did not all run", False
                return "none", "", True
        seen = answer.ready if known(answer) else answer
        return "verify", f"it is active, but its ready endpoint says {seen}", False
    if active == "deactivating":
        return "start", "it is stopping: started again once it has", False
    result = f" ({state.result})" if known(state.result) and state.result != "success" else ""
    return "start", f"it is {active if known(active) else 'not there yet'}{result}", False


def _is_said(what: str, found: Findings) -> bool:
    return any(change.what == what for change in found.changes)


def _same(survey: Survey, file: PlannedFile) -> bool:
    there = survey.files.get(file.path)
    if there is None or not has_sum(there, file.sha256):
        return False
    return file.link is not None or there.mode == file.mode


def _why_file(survey: Survey, file: PlannedFile) -> str:
    return (
        "not there yet"
        if seen_sum(survey, file.path) == "absent"
        else "differs from what it should be"
    )


def _what_differs(survey: Survey, files: Iterable[PlannedFile]) -> str:
    names = [file.name for file in files if not _same(survey, file)]
    return f"{', '.join(names)} of the current deployment differ{'s' if len(names) == 1 else ''}"


def _diffs(survey: Survey, files: Iterable[PlannedFile]) -> str:
    out = []
    for file in files:
        if _same(survey, file):
            continue
        there = survey.files.get(file.path)
        before = there.text if there is not None and known(there.text) else ""
        if file.link is not None:
            out.append(f"+++ {file.path}: a link to {file.link}\n")
            continue
        if file.mode == "0600":
            out.append(f"--- {file.path}: only root reads it; its checksum changes\n")
            continue
        if there is not None and there.exists and not known(there.text):
            # Of a gate only the checksum is read: it is no new file, and must not look like one.
            out.append(f"--- {file.path}: its text was not read; its checksum changes\n")
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
    deployed: tuple[PlannedFile, ...],
    discard_edits: bool,
    found: Findings,
) -> None:
    """Refuse where a file is neither as we wrote it nor as it should become: someone edited it."""
    written: dict[str, str | None] = dict(written_files(state))
    wanted = {file.path: file.sha256 for file in planned}
    for file in planned:
        # Of one that is there and that no plan tells of, nobody knows who wrote it.
        written.setdefault(file.path, None)
    for path, sha256 in written.items():
        there = survey.files.get(path)
        if there is None or not known(there.sha256):
            continue
        # A switch that was cut had put the file of another deployment there.
        cut = [written_by(survey, state, number).get(path) for number in state.deployments]
        if any(has_sum(there, one) for one in (sha256, wanted.get(path), *cut) if one is not None):
            continue
        shared = path in (paths.UNIT, paths.DEVICES_UNIT)
        if shared and _written_by_another(survey, path, there.sha256):
            continue
        said = "is not as it was written (edited by hand)"
        if sha256 is None:
            said = "is there, and no deployment says that the toolkit wrote it so"
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
            f"{path} {said}",
            "a managed file as the toolkit wrote it",
            f"{where_to_keep(path, state.name)}, then apply with --discard-edits",
            _diffs(survey, [file for file in (*planned, *deployed) if file.path == path]),
        )


def _written_by_another(survey: Survey, path: str, sha256: str) -> bool:
    return any(written_files(other).get(path) == sha256 for other in survey.services.values())
