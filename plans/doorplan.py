"""Plans the door: its settings, what of it differs from the node, and what that means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from facts.records import DoorState, Survey, Unknown, known
from plans import arguments, paths
from plans.bundle import Bundle
from plans.difference import Words
from plans.door import DoorAct, DoorPlan
from plans.doorbundle import door_from_bundle
from plans.doorcertificate import check_certificate, is_renewed
from plans.doorfiles import files_of_door, key_of, units_of_door, units_written
from plans.doorwish import Door, server_names
from plans.drift import overlap
from plans.findings import Findings
from plans.launch import PlannedFile
from plans.managed import has_sum, seen_sum
from plans.pair import half_of
from plans.pairchecks import check_door_of_pairs
from plans.recorded import first_answer_seconds
from plans.refusals import Caution
from plans.reload import check_reload
from plans.secrets import NodeSecrets, Secret, SecretFile, fingerprint, is_there
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.locks import Requirements
from plans.wheel.planned import environment_of
from plans.wishes import Service, Wishes
from releases.door import ROUTER, VERSION, door_lock, door_problems, door_text
from releases.wheels import LockDamaged, WheelLock, read_lock


@dataclass(frozen=True)
class _Named:
    name: str = paths.DOOR


def plan_door(
    wishes: Wishes,
    survey: Survey,
    secrets: NodeSecrets,
    found: Findings,
    *,
    words: Words,
    bundle: Bundle | None,
) -> DoorPlan | None:
    """Return the plan of a node's door; None: none is wanted and none is there, or it is refused.

    Adds to ``found`` what is changed, refused and warned of. ``bundle``: what is missing comes from
    it, never over the network.
    """
    door, there = wishes.door, survey.door
    if door is None:
        if not there.is_there:
            return None
        found.change(None, "door", "take the door away", "the inventory has none")
        return DoorPlan("remove")
    if isinstance(there.current, Unknown) and there.current.why != "absent":
        found.refuse(
            "DOOR_UNREAD",
            None,
            f"what is there of the door could not be read ({there.current})",
            "to know what runs before anything is changed",
            f"systemctl status {paths.DOOR_UNIT_NAME}; ls -l {paths.DOORS}; then plan again",
        )
        return None
    _check(door, wishes, survey, found)
    environment = _environment(door, wishes, survey, found)
    if environment is None:
        return None
    took = None
    if bundle is not None:
        environment, took = door_from_bundle(bundle, environment, survey, found)
    plan = _difference(door, wishes, survey, secrets, environment, found, words)
    of_tls = check_certificate(door.tls, survey, found) if door.tls else ()
    gaps = tuple(_gap(door, wishes, survey))
    found.cautions += [one for one in gaps if isinstance(one, Caution)]
    lines = [one for one in gaps if isinstance(one, str)]
    return replace(plan, bundle=took, lines=(*lines, *of_tls))


def keys_file(keys: Mapping[str, Secret]) -> SecretFile:
    """Return the file with the keys of the door's clients; one without a key lets all in."""
    lines = ["# The keys of the door's clients: only root reads this file."]
    lines += [f"# {fingerprint(key, f'{paths.DOOR} {at}')}" for at, key in keys.items()]
    lines += [key.reveal() for key in keys.values()]
    return SecretFile(paths.DOOR_KEYS, Secret("\n".join(lines) + "\n"))


def settings_of(door: Door, services: tuple[Service, ...]) -> dict[str, object]:
    """Return what the door's program reads, without the key of it all."""
    by_name = {one.name: one for one in services}
    servers = []
    for name, url in server_names(door, services).items():
        if url is None:
            one = by_name[name]
            url = f"http://{arguments.probe_host(one)}:{one.port}"
        servers.append({"name": name, "url": url})
    return {
        "host": door.host,
        "port": door.port,
        "wait": door.wait,
        "policy": door.policy,
        "pd_disaggregation": door.pd_disaggregation,
        "tls": door.tls.model_dump() if door.tls else None,
        "servers": servers,
    }


# --- what must hold


def _check(door: Door, wishes: Wishes, survey: Survey, found: Findings) -> None:
    if door.is_open:
        found.cautions.append(
            Caution(
                "OPEN_WITHOUT_KEY",
                f"the door listens on {door.host} port {door.port} and has no key: whoever reaches "
                "it can use the models; to close it: keys: {'env': 'NAME'} under door",
            )
        )
    names = server_names(door, wishes.services)
    before = [one for one in wishes.services if one.name in names]
    for one in before:
        if one.keys:
            found.refuse(
                "DOOR_BEFORE_KEY",
                one.name,
                f"{one.name} holds its {' and '.join(one.keys)} itself, and the door is before it",
                "keys at the door alone: it hands on no client's key",
                f"move the key: leave it out of {one.name}, and write it as keys under door",
            )
    models = sorted({one.public_name for one in before})
    if len(models) > 1:
        found.refuse(
            "DOOR_MODELS_DIFFER",
            None,
            f"the door's servers have the models {', '.join(models)}",
            "servers of one model: a request goes to any of them, whatever model it names",
            "name those of one model: servers: [...] under door",
        )
    check_door_of_pairs(door, wishes.services, found)
    _check_port(door, survey, found)


def _check_port(door: Door, survey: Survey, found: Findings) -> None:
    # The keeper has the socket, and the process that serves.
    ours = [pid for pid in (survey.door.main_pid, survey.door.pid) if known(pid)]
    if not known(survey.listeners):
        return
    for listener in survey.listeners:
        if listener.port != door.port or not overlap(listener.address, door.host):
            continue
        if known(listener.pid) and str(listener.pid) in ours:
            continue
        who = listener.process if known(listener.process) else "a process"
        pid = f" (pid {listener.pid})" if known(listener.pid) else ""
        found.refuse(
            "PORT_TAKEN",
            None,
            f"{who}{pid} listens on {listener.address} port {listener.port}",
            f"port {door.port} free for the door",
            f"give the door another port, or stop that process: ss -ltnp 'sport = :{door.port}'",
        )
        return


def _gap(door: Door, wishes: Wishes, survey: Survey) -> Iterator[Caution | str]:
    """Say how long requests would wait for a restart of an only server, by its last start."""
    for only in _only_ones(door, wishes.services):
        state = survey.services.get(only.name)
        seconds = first_answer_seconds(state.record) if state is not None else None
        if seconds is None:
            continue
        if seconds <= door.wait:
            yield (
                f"a restart of {only.name} is bridged by waiting at the door: the last start took "
                f"{seconds} s to its first answer, and requests wait for {door.wait:g} s"
            )
            continue
        yield Caution(
            "DOOR_GAP",
            f"the last start of {only.name} took {seconds} s to its first answer, and requests "
            f"wait at the door for {door.wait:g} s: of a restart those of the first "
            f"{seconds - door.wait:g} s get 503 with Retry-After; a second server bridges it, "
            f"or wait: {seconds + 30} under door",
            only.name,
        )


def _only_ones(door: Door, services: tuple[Service, ...]) -> tuple[Service, ...]:
    """Return the services without which the door serves nobody: its only one, or only half of a kind."""
    names = server_names(door, services)
    local = [one for one in services if one.name in names]
    halves = [half_of(one) for one in local]
    if len(local) < len(names):
        return ()  # what those of other nodes are, this node does not know
    return tuple(one for one in local if halves.count(half_of(one)) == 1)


# --- its packages


def _environment(
    door: Door, wishes: Wishes, survey: Survey, found: Findings
) -> PlannedEnvironment | None:
    machine = survey.host.architecture
    lock = _lock(door, machine if known(machine) else "unknown", found)
    if lock is None:
        return None
    requirements = Requirements(lock, door_text(lock), door.lock.path if door.lock else None)
    return environment_of(_Named(), requirements, wishes, survey, found, of=ROUTER)


def _lock(door: Door, machine: str, found: Findings) -> WheelLock | None:
    own = door.lock
    what = f"the lock of {ROUTER} {VERSION}" if own is None else own.path
    again = "python -m releases.tools.lock_door" if own is None else f"make {own.path} again"
    try:
        lock = door_lock(machine) if own is None else read_lock(own.text or "")
    except LockDamaged as error:
        needed = "a lock as the program wrote it"
        found.refuse("WHEELS_DAMAGED", None, f"{what}: {error}", needed, again)
        return None
    if lock is None or lock.architecture != machine:
        seen = f"no lock of {ROUTER} {VERSION} for {machine}"
        found.refuse(
            "WHEELS_WRONG_PLATFORM",
            None,
            seen,
            "a node of x86_64 or aarch64",
            f"door.lock: {again}",
        )
        return None
    wrong = door_problems(lock)
    for one in wrong:
        found.refuse(one.code, None, f"{what}: {one.seen}", one.needed, again)
    return None if wrong else lock


# --- what differs


def _difference(
    door: Door,
    wishes: Wishes,
    survey: Survey,
    secrets: NodeSecrets,
    environment: PlannedEnvironment,
    found: Findings,
    words: Words,
) -> DoorPlan:
    there = survey.door
    settings = settings_of(door, wishes.services)
    current = there.current if known(there.current) else ""
    turns = [files_of_door(settings, environment, turn) for turn in (0, 1)]
    files = next((one for one in turns if key_of(one) == current), turns[0])
    unlike = [one.name for one in files if not _is_as_it_should(survey, one)]
    units = tuple(one for one in units_of_door() if not _is_as_it_should(survey, one))
    seen = {one.name: seen_sum(survey, one.path) for one in units}
    written = units_written(survey)
    edited = list(unlike) if key_of(files) == current else []
    edited += [name for name, is_so in seen.items() if is_so not in ("absent", written.get(name))]
    if edited and not words.discard_edits:
        found.refuse(
            "FILE_EDITED",
            None,
            f"{', '.join(edited)} of the door: not as it was written (edited by hand)",
            "managed files as the toolkit wrote them",
            "keep what you want as a drop-in (systemctl edit sglang-door) or in the inventory, then "
            "apply with --discard-edits",
        )
    if unlike and key_of(files) == current:
        files = next(one for one in turns if key_of(one) != current)
    key, new = key_of(files), bool(unlike)
    servers = server_names(door, wishes.services)
    said = f"{door.host} port {door.port}, before {', '.join(servers)}"
    keys = secrets.keys.get(paths.DOOR, {})
    wanted = keys_file(keys) if len(keys) == len(door.keys) else None
    write_keys = wanted is not None and not is_there(survey, wanted)
    reload = bool(units) or there.need_daemon_reload == "yes"
    enable = there.unit_file_state != "enabled"

    if new:
        why = f"its settings change: {said}" if current else f"nothing is there yet: {said}"
        found.change(None, "door", f"{paths.DOORS}/{key}", why)
    if write_keys:
        count = f"{len(door.keys)} key{'s' if len(door.keys) != 1 else ''}"
        found.change(None, "credential", paths.DOOR_KEYS, f"{count} of clients; only root reads it")
    for unit in units:
        why = "not there yet" if seen[unit.name] == "absent" else "differs from what it should be"
        found.change(None, "unit", unit.path, why)
    if reload:
        found.change(None, "daemon-reload", "systemctl daemon-reload", "the door's units change")
    # systemd reloads by itself when a unit is enabled (systemctl(1)).
    if reload or enable:
        check_reload(survey, None, words.allow_daemon_reload, found)
    if enable:
        found.change(None, "enable", paths.DOOR_UNIT_NAME, "it shall start with the node")
    back = tuple(n for n, one in there.servers.items() if one.state == "out-passing")
    again = paths.DOOR_UNIT_NAME in seen or (environment.build and not new)
    act, why = _act(there, key, wanted, again, new or write_keys, back)
    if act in ("start", "restart", "renew"):
        found.change(None, act, paths.DOOR_UNIT_NAME, why)
    elif act == "return":
        found.change(None, "door", f"let {', '.join(back)} back into rotation", why)
    for name, one in there.servers.items():
        if one.state == "out-held":
            text = (
                f"{name} is held out of the door's rotation: rm {paths.DOOR_OUT}/{name} lets it in"
            )
            found.cautions.append(Caution("DOOR_HELD_OUT", text))
    return DoorPlan(
        act=act,
        key=key,
        before=current,
        files=files,
        new=new,
        units=units,
        units_before=tuple("" if is_so == "absent" else is_so for is_so in seen.values()),
        keys=wanted if write_keys else None,
        environment=environment,
        daemon_reload=reload,
        enable=enable,
        back=back,
        wait_for=tuple(n for n, url in servers.items() if url is None and not _held(there, n)),
        proves=door.pd_disaggregation
        and all(url is None and not _held(there, n) for n, url in servers.items()),
        tls=(door.tls.certificate, door.tls.key) if door.tls else None,
        said=said,
    )


def _held(there: DoorState, name: str) -> bool:
    return name in there.servers and there.servers[name].state == "out-held"


def _is_as_it_should(survey: Survey, file: PlannedFile) -> bool:
    path = file.path
    if path.startswith(f"{paths.DOORS}/"):
        path = f"{paths.DOORS}/current/{file.name}"
    there = survey.files.get(path)
    return there is not None and has_sum(there, file.sha256) and there.mode == file.mode


def _act(
    there: DoorState,
    key: str,
    keys: SecretFile | None,
    again: bool,
    changed: bool,
    back: tuple[str, ...],
) -> tuple[DoorAct, str]:
    """Return what is done with the door; ``again``: it cannot take what changes while it runs."""
    if there.active_state != "active":
        seen = there.active_state if known(there.active_state) else "not there yet"
        return "start", f"it is {seen}"
    if again:
        return "restart", (
            "its unit or its packages are another; requests in flight are finished first, and who "
            "connects meanwhile waits"
        )
    if changed or there.settings != key:
        return "renew", "it takes what changes while it serves"
    if keys is not None and there.keys != keys.sha256:
        return "renew", "it runs with other keys, and takes these while it serves"
    if is_renewed(there):
        return "renew", "a renewed certificate is in place; it takes it while it serves"
    if back:
        return "return", "a run that was cut left it out"
    return "none", ""
