"""Going back to an earlier deployment: what was made stays made, so it is a switch and a restart.

Nothing is fetched and nothing is written but two links: the deployment's own copies of the unit
and the drop-in come back with it. Where the driver or the GPUs are others than it was made for,
its kernels and its arguments are not for this node any more, and it is planned again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from facts.records import ServiceState, Survey, known
from plans import drift, paths
from plans.backchecks import check_gpus_of_others, check_host, check_there
from plans.deployment import PlannedFile
from plans.difference import changes_runtime, left_by_another, own_port
from plans.findings import Findings
from plans.history import plan_of_deployment
from plans.managed import has_sum, seen_sum, written_by, written_files
from plans.pastdeployment import launch_of, unfit, what_moved
from plans.plan import Act, Change, ChangeKind, Guard
from plans.refusals import Caution, Refusal
from plans.reload import check_reload, stops_first
from plans.unended import came_from
from plans.wishes import Service


@dataclass(frozen=True)
class Back:
    """What it takes to go back, or all the reasons against it."""

    name: str
    current: int | None
    number: int = 0  # of the deployment that is gone back to
    release: str = ""
    service: Service | None = None  # as it was wished for then
    launch: Mapping[str, str] = field(default_factory=dict)  # its launch.env
    unit: PlannedFile | None = None  # None: as it should be
    devices_unit: PlannedFile | None = None  # of the wheel runtime
    drop_in: PlannedFile | None = None
    removed: tuple[str, ...] = ()  # files that another runtime left, to take away
    other_runtime: bool = False  # what runs is of another one
    daemon_reload: bool = False
    enable: bool = False
    stop_first: bool = False
    act: Act = "restart"
    guard: Guard | None = None
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    came_from: int | None = None  # where it goes on with a way back that was cut
    moved: tuple[str, ...] = ()  # why it is planned again: what is another than it was made for

    @property
    def replaced(self) -> tuple[PlannedFile, ...]:
        """The files outside of the deployment that the switch puts in their places."""
        files = (self.unit, self.devices_unit, self.drop_in)
        return tuple(file for file in files if file is not None)

    @property
    def runtime(self) -> str:
        """The runtime of the deployment that is gone back to."""
        return self.launch.get("SGLANG_RUNTIME", "image")

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which it stands in JSON documents."""
        return {
            "name": self.name,
            "from": self.current,
            "to": self.number or None,
            "release": self.release or None,
            "changes": [one.as_dict() for one in self.changes],
            "refusals": [one.as_dict() for one in self.refusals],
            "cautions": [one.as_dict() for one in self.cautions],
            "planned_again": list(self.moved),
        }


def go_back(
    survey: Survey,
    state: ServiceState,
    to: int | None,
    *,
    allow_daemon_reload: bool = False,
    goes_on: bool = True,
) -> Back:
    """Return what it takes to go back to deployment ``to``, or to the previous one.

    With ``goes_on`` a way back that was cut is gone on with where nothing else is asked for: what
    it led to is the current one already.

    The survey must have read that deployment whole (``SurveyRequest.whole``). Refuses with all
    reasons at once; nothing here changes anything.
    """
    current = state.current if known(state.current) else None
    found = Findings()
    cut_from = came_from(survey, state) if goes_on and to in (None, current) else None
    number = current if cut_from is not None else _number(survey, state, to, found)
    if number is None:
        return Back(state.name, current, refusals=tuple(found.refusals))
    plan = plan_of_deployment(survey, state, number)
    service = _service(state.name, number, plan, found)
    _check_whole(survey, state, number, plan, found)
    launch = launch_of(survey, state, number)
    back = Back(
        state.name,
        current,
        number,
        release=str(plan.get("release") or ""),
        service=service,
        launch=launch,
        came_from=cut_from,
    )
    moved = what_moved(survey, plan) if plan else ()
    if service is None or moved:
        return _with(back, found, moved=moved)
    check_there(survey, state, number, launch, found)
    check_host(survey, state, service, found)
    check_gpus_of_others(survey, state, number, plan, found)
    return _difference(survey, state, back, service, allow_daemon_reload, found)


# --- which one, and whether it is whole


def _number(survey: Survey, state: ServiceState, to: int | None, found: Findings) -> int | None:
    current = state.current if known(state.current) else None
    there = ", ".join(map(str, state.deployments)) or "none"
    previous = state.previous if known(state.previous) else None
    number = previous if to is None else to
    seen = needed = ""
    if number is None:
        seen, needed = f"{state.name} has no previous deployment", "one to go back to"
    elif number not in state.deployments:
        seen = f"{state.name} has no deployment {number} on this node"
        needed = f"one that is there: {there}"
    elif number == current:
        seen = f"deployment {number} is the current one of {state.name}"
        needed = f"another one: {there}"
    elif why := unfit(survey, state, number, named=to is not None):
        seen, needed = why
    if seen:
        advice = f"sglang-node history TARGET --service {state.name}, then rollback --to NUMBER"
        found.refuse("NO_WAY_BACK", state.name, seen, needed, advice)
        return None
    return number


def _service(name: str, number: int, plan: Mapping[str, Any], found: Findings) -> Service | None:
    try:
        return Service.model_validate(plan["service"])
    except (KeyError, TypeError, ValidationError):
        _broken(name, number, f"{paths.PLAN_JSON} of it cannot be read", found)
        return None


def _check_whole(
    survey: Survey, state: ServiceState, number: int, plan: Mapping[str, Any], found: Findings
) -> None:
    """Every file must be there as it was written: what it starts from is what was proved."""
    deployment = paths.Deployment(state.name, number)
    files = plan.get("files")
    if not isinstance(files, Mapping):
        return
    bad = []
    for path, sha256 in sorted(files.items()):
        if not str(path).startswith(f"{deployment.directory}/"):
            continue
        there = survey.files.get(path)
        name = str(path).rsplit("/", 1)[1]
        if there is None or not there.exists:
            bad.append(f"{name} is gone")
        elif not known(there.sha256) and not known(there.link):
            bad.append(f"{name} cannot be read")
        elif not has_sum(there, str(sha256)):
            bad.append(f"{name} was edited")
    wheel = plan.get("environment") is not None
    units = (paths.unit_of(state.name), paths.DEVICES_UNIT_NAME) if wheel else (paths.UNIT_NAME,)
    for name in (*units, paths.DROP_IN_NAME):
        if f"{deployment.directory}/{name}" not in files:
            bad.append(f"{name} is not among its files")
    if bad:
        _broken(state.name, number, ", ".join(bad), found)


def _broken(name: str, number: int, seen: str, found: Findings) -> None:
    found.refuse(
        "DEPLOYMENT_BROKEN",
        name,
        f"deployment {number}: {seen}",
        "a deployment as it was written and proved",
        f"go back to another one (sglang-node history TARGET --service {name}), or apply with the "
        "release and arguments that it had",
    )


# --- what changes


def _difference(
    survey: Survey,
    state: ServiceState,
    back: Back,
    service: Service,
    allow_daemon_reload: bool,
    found: Findings,
) -> Back:
    name, number = state.name, back.number
    unit_name, unit_path, devices = paths.UNIT_NAME, paths.UNIT, None
    if back.runtime == "wheel":
        unit_name, unit_path = paths.unit_of(name), paths.wheel_unit(name)
        devices = _replaced(
            survey, state, number, paths.DEVICES_UNIT_NAME, paths.DEVICES_UNIT, found
        )
    unit = _replaced(survey, state, number, unit_name, unit_path, found)
    removed = left_by_another(survey, state, back.runtime)
    other = changes_runtime(state, back.runtime)
    drop_in = _replaced(survey, state, number, paths.DROP_IN_NAME, paths.drop_in(name), found)
    moved = bool(unit or devices or drop_in or removed)
    reload = moved or state.need_daemon_reload is True
    enable = state.unit_file_state != "enabled"
    stop_first = (reload or enable) and (stops_first(survey, state) or other)
    if back.came_from is None:
        instead = f"instead of {back.current}"
    else:
        instead = (
            "going back to it was cut, or it did not answer, and is gone on with; to go elsewhere: "
            "rollback --to NUMBER"
        )
    found.change(name, "deployment", paths.Deployment(name, number).directory, instead)
    files: tuple[tuple[ChangeKind, PlannedFile | None], ...] = (
        ("unit", unit),
        ("unit", devices),
        ("drop-in", drop_in),
    )
    for kind, file in files:
        if file is not None:
            found.change(name, kind, file.path, f"as it was with deployment {number}")
    for path in removed:
        found.change(name, "removed file", path, "the unit of the wheel runtime, which it leaves")
    if reload:
        why = "the unit or its drop-in changes" if moved else "systemd holds an older unit"
        found.change(name, "daemon-reload", "systemctl daemon-reload", why)
    if reload or enable:
        check_reload(survey, name, allow_daemon_reload, found)
    runs = state.active_state in ("active", "activating", "reloading")
    act: Literal["restart", "start", "verify", "wait"] = "restart" if runs else "start"
    said = "requests in flight are finished first" if runs else f"it is {state.active_state}"
    if (
        back.came_from is not None
        and runs
        and not (reload or enable or drift.restart_reasons(survey, state))
    ):
        act = "verify" if state.active_state == "active" else "wait"
        found.change(name, "verify", paths.unit_of(name), f"it runs from deployment {number}")
    else:
        found.change(
            name,
            "restart" if runs else "start",
            paths.unit_of(name),
            f"from deployment {number}; {said}",
        )
    replaced = [file.path for file in (unit, devices, drop_in) if file is not None]
    guard = Guard(
        current=back.current,
        main_pid=state.main_pid if known(state.main_pid) else 0,
        invocation=state.invocation_id if known(state.invocation_id) else "",
        sums={path: seen_sum(survey, path) for path in (*replaced, *removed)},
        port_free=None if own_port(state) == service.port else service.port,
        steady=state.active_state != "activating",
    )
    return _with(
        back,
        found,
        unit=unit,
        devices_unit=devices,
        drop_in=drop_in,
        removed=removed,
        other_runtime=other or bool(removed),
        daemon_reload=reload,
        enable=enable,
        stop_first=stop_first,
        act=act,
        guard=guard,
    )


def _replaced(
    survey: Survey, state: ServiceState, number: int, name: str, path: str, found: Findings
) -> PlannedFile | None:
    """Return the deployment's own copy of a file of systemd's, or None where it is in place."""
    own = survey.files.get(paths.Deployment(state.name, number).file(name))
    if own is None or not known(own.text):
        return None  # said already: it is not whole
    file = PlannedFile(path, own.text)
    if hashlib.sha256(own.text.encode()).hexdigest() != own.sha256:
        _broken(state.name, number, f"the text of {name} cannot be read whole", found)
        return None
    there = survey.files.get(path)
    if there is not None and there.sha256 == file.sha256 and there.mode == file.mode:
        return None
    others = [written_files(one).get(path) for one in survey.services.values()]
    # A switch that was cut had put the file of another deployment there.
    others += [written_by(survey, state, one).get(path) for one in state.deployments]
    if there is not None and known(there.sha256) and there.sha256 not in (*others, file.sha256):
        found.refuse(
            "FILE_EDITED",
            state.name,
            f"{path} is not as it was written (edited by hand)",
            "a managed file as the toolkit wrote it",
            f"keep the edit as a drop-in (systemctl edit {paths.unit_of(state.name)}), put the file "
            "back, then go back",
        )
    return file


def _with(back: Back, found: Findings, **keys: Any) -> Back:
    refusals = tuple(dict.fromkeys(found.refusals))
    return Back(
        **{
            **vars(back),
            **keys,
            "refusals": refusals,
            "cautions": tuple(dict.fromkeys(found.cautions)),
            "changes": () if refusals else tuple(found.changes),
        }
    )
