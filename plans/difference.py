"""The difference of a service's plan to what is on the node: changes, edits, the act."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from facts.records import ABSENT, ServiceState, Survey, known
from plans import drift, paths
from plans.deployment import (
    Launch,
    PlannedFile,
    deployment_files,
    drop_in_file,
    plan_file,
    unit_file,
)
from plans.findings import Findings
from plans.keys import key_change, planned_key_file
from plans.locked import Image
from plans.plan import Act, ChangeKind, Guard, ServicePlan
from plans.refusals import Caution
from plans.reload import check_reload, stops_first


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
    image: Image,
    survey: Survey,
    state: ServiceState,
    words: Words,
    found: Findings,
) -> ServicePlan:
    name = plan.name
    current = state.current if known(state.current) else None
    previous = state.previous if known(state.previous) else None
    unit, drop_in = unit_file(), drop_in_file(launch)
    _check_edits(survey, state, (unit, drop_in), words.discard_edits, launch, found)

    number, new, why_anew = current or 0, True, None
    files: tuple[PlannedFile, ...] = ()
    if current is not None:
        files = deployment_files(launch, current)
        why_anew = key_change(survey, launch.service, current, _server_yaml(files), launch.secrets)
        if not written_files(state):
            why_anew = why_anew or f"{paths.PLAN_JSON} of the current deployment cannot be read"
        new = why_anew is not None or any(not _same(survey, file) for file in files)
    old = files
    if new:
        # Where it runs and no link says from which, none that is there may be written over.
        runs = known(state.active_state) and state.active_state not in ("inactive", "failed")
        there = state.deployments if current is None and runs else ()
        number = max((current or 0, previous or 0, *there)) + 1
        files = deployment_files(launch, number)
        why = "nothing is deployed yet"
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
    enable = state.unit_file_state != "enabled"
    # systemd reloads by itself when a unit is enabled (systemctl(1)).
    stop_first = (reload or enable) and stops_first(survey, state)
    if reload:
        why = (
            "the unit or its drop-in changes"
            if new_unit or new_drop_in
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

    changed = new or new_unit is not None or new_drop_in is not None
    act, why, ready = _act(survey, state, launch, changed, stop_first)
    if act != "none":
        kind: ChangeKind = "verify" if act == "wait" else act
        found.change(name, kind, paths.unit_of(name), why)
    replaced = [f for f in (new_unit, new_drop_in) if f]
    return replace(
        plan,
        number=number,
        files=(*files, plan_file(launch, number, files)),
        new_deployment=new,
        key_file=planned_key_file(launch.service, number, _server_yaml(files), launch.secrets)
        if new
        else None,
        unit=new_unit,
        drop_in=new_drop_in,
        pull=None if image.present else image.run,
        daemon_reload=reload,
        enable=enable,
        stop_first=stop_first,
        act=act,
        ready=ready,
        guard=Guard(
            current=current,
            main_pid=state.main_pid if known(state.main_pid) else 0,
            invocation=state.invocation_id if known(state.invocation_id) else "",
            sums={file.path: _sum(survey, file.path) for file in replaced},
            port_free=None if own_port(state) == launch.service.port else launch.service.port,
            steady=state.active_state != "activating",
        ),
    )


def _server_yaml(files: Iterable[PlannedFile]) -> str:
    return next(file.text for file in files if file.path.endswith(f"/{paths.SERVER_YAML}"))


def _act(
    survey: Survey, state: ServiceState, launch: Launch, changed: bool, stop_first: bool
) -> tuple[Act, str, bool]:
    active = state.active_state
    if active in ("active", "activating", "reloading"):
        reasons = ["with the new deployment"] if changed else drift.restart_reasons(survey, state)
        if stop_first and not reasons:
            reasons = ["it would lose its GPUs by the daemon-reload (legacy mode)"]
        if reasons:
            said = "; ".join(reasons)
            return "restart", f"{said}; requests in flight are finished first", False
        if active != "active":
            return "wait", "it is starting: waited for, then verified", False
        answer = state.answer
        if known(answer) and answer.ready == 200 and known(answer.model_names):
            if launch.service.public_name in answer.model_names:
                if state.record == ABSENT:
                    return "verify", "no record says that this deployment was verified", False
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
        if there is None or not known(there.sha256) or there.sha256 in (sha256, wanted.get(path)):
            continue
        if path == paths.UNIT and _written_by_another(survey, path, there.sha256):
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _written_by_another(survey: Survey, path: str, sha256: str) -> bool:
    return any(written_files(other).get(path) == sha256 for other in survey.services.values())
