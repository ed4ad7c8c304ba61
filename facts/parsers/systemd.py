"""``systemctl show`` and its like, deployments, and the answers of running services."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from facts import fields
from facts.records import ABSENT, Answer, ManagedFile, ServiceState, Unknown
from facts.request import LAUNCH_FILE, PLAN_FILE, RECORD_FILE
from facts.sections import Section, Sections

_UNIT = re.compile(r"sglang@(.+)\.service")
_WRITTEN = re.compile(r"(\d{1,12}) (\d{1,9}/[a-z]+\.json)", re.ASCII)
_PLAIN = re.compile(r'"([^"\\]*)"|[^\s"\'\\]+')
"""A value of which a shell makes one word as it stands, between double quotes or without."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def shown_units(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the properties of each unit that ``systemctl show`` printed, blank lines between."""
    units: list[dict[str, str]] = [{}]
    for line in lines:
        key, separator, value = line.partition("=")
        if separator:
            units[-1][key] = value
        elif not line.strip() and units[-1]:
            units.append({})
    return [unit for unit in units if unit]


def active_states_of_nvidia(sections: Sections) -> dict[str, str | Unknown]:
    """Return the ActiveState of NVIDIA's services; absent where there is no such unit."""
    names = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-vgpu-mgr")
    section = sections.get("systemd.units")
    missing = sections.missing("systemd") if section is None else section.failure or ABSENT
    states: dict[str, str | Unknown] = {f"{name}.service": missing for name in names}
    for shown in shown_units(section.out if section else ()):
        if shown.get("LoadState") not in (None, "not-found"):
            states[shown.get("Id", "")] = fields.text(
                "Nvidia.fabricmanager", shown.get("ActiveState")
            )
    return states


def parse_services(
    sections: Sections, files: Mapping[str, ManagedFile], deployments: Iterable[Section]
) -> dict[str, ServiceState]:
    """Return every service of the node, by name.

    Takes the files of the survey as well: those of the current deployment give its settings,
    plan and record.
    """
    services: dict[str, ServiceState] = {}
    show = sections.get("services.show")
    for shown in shown_units(show.out if show else ()):
        found = _UNIT.fullmatch(shown.get("Id", ""))
        if found is not None:
            services[found[1]] = _state(found[1], shown)
    for section in deployments:
        name = section.first
        if name is not None:
            unit = services.get(name, ServiceState(name, load_state=_no_unit(sections, show)))
            services[name] = _with_deployment(unit, section, files)
    answers = _answers(sections)
    keys = {section.first: section for section in sections.all("dropin.keys")}
    last = {
        section.first: section.failure or section.out[1:] for section in sections.all("last.lines")
    }
    # A tick of /proc/PID/stat is a hundredth of a second on every Linux that is supported.
    began = {section.first: section.out[1:2] for section in sections.all("main.began")}
    runs = {section.first: section.out[1:2] for section in sections.all("main.deployment")}
    return {
        name: replace(
            service,
            answer=answers.get(name, _no_answer(sections, service)),
            drop_in_keys=_drop_in_keys(service, keys),
            last_lines=last.get(name, ABSENT),
            main_began=fields.number(
                "ServiceState.main_began", next(iter(began.get(f"sglang@{name}.service", ())), None)
            ),
            main_deployment=fields.number(
                "ServiceState.main_deployment",
                next(iter(runs.get(f"sglang@{name}.service", ())), None),
            ),
        )
        for name, service in sorted(services.items())
    }


def _drop_in_keys(
    service: ServiceState, keys: Mapping[str | None, Section]
) -> dict[str, tuple[str, ...] | Unknown]:
    """Return what each drop-in of somebody else sets, of those that were looked into."""
    found = {path: keys[path] for path in service.drop_ins if path in keys}
    return {
        path: section.failure or tuple(line for line in section.out[1:] if line.strip())
        for path, section in found.items()
    }


def _no_unit(sections: Sections, show: Section | None) -> Unknown:
    return sections.missing("services") if show is None else show.failure or ABSENT


def _state(name: str, shown: Mapping[str, str]) -> ServiceState:
    def text(field: str, prop: str) -> str | Unknown:
        return fields.text(f"ServiceState.{field}", shown.get(prop))

    def number(field: str, prop: str) -> int | Unknown:
        return fields.number(f"ServiceState.{field}", shown.get(prop))

    return ServiceState(
        name=name,
        load_state=text("load_state", "LoadState"),
        active_state=text("active_state", "ActiveState"),
        sub_state=text("sub_state", "SubState"),
        result=text("result", "Result"),
        unit_file_state=text("unit_file_state", "UnitFileState"),
        main_pid=number("main_pid", "MainPID"),
        restarts=number("restarts", "NRestarts"),
        invocation_id=text("invocation_id", "InvocationID"),
        state_since=text("state_since", "StateChangeTimestamp"),
        start_began=number("start_began", "ExecMainStartTimestampMonotonic"),
        active_began=number("active_began", "ActiveEnterTimestampMonotonic"),
        status_text=text("status_text", "StatusText"),
        need_daemon_reload=fields.flag(
            "ServiceState.need_daemon_reload", shown.get("NeedDaemonReload")
        ),
        exec_main_status=number("exec_main_status", "ExecMainStatus"),
        fragment_path=text("fragment_path", "FragmentPath"),
        drop_ins=tuple(shown.get("DropInPaths", "").split()),
    )


def _with_deployment(
    service: ServiceState, section: Section, files: Mapping[str, ManagedFile]
) -> ServiceState:
    if section.failure is not None:
        return replace(service, current=section.failure, previous=section.failure)
    links: dict[str, str] = {}
    numbers = []
    written: dict[str, int] = {}
    for line in section.out[1:]:
        word, _, value = line.partition(" ")
        if word == "number":
            if value.isascii() and value.isdigit() and len(value) < 10:
                numbers.append(int(value))
        elif word == "written":
            if found := _WRITTEN.fullmatch(value):
                written[found[2]] = int(found[1])
        elif word:
            links[word] = value
    service = replace(
        service,
        current=fields.number("ServiceState.current", links.get("current")),
        previous=fields.number("ServiceState.previous", links.get("previous")),
        deployments=tuple(sorted(numbers)),
        written=written,
    )
    if not isinstance(service.current, int):
        return service
    directory = re.compile(rf".*/{re.escape(service.name)}/{service.current}/([^/]+)")
    mine = {found[1]: file for path, file in files.items() if (found := directory.fullmatch(path))}
    launch = mine.get(LAUNCH_FILE)
    return replace(
        service,
        launch=parse_environment(launch.text) if launch and isinstance(launch.text, str) else {},
        record=mine[RECORD_FILE].text if RECORD_FILE in mine else ABSENT,
        plan=mine[PLAN_FILE].text if PLAN_FILE in mine else ABSENT,
    )


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of a systemd EnvironmentFile: one a line, values possibly quoted."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        found = _ASSIGNMENT.fullmatch(line.strip())
        if found is None:
            continue
        plain = _PLAIN.fullmatch(found[2])
        if plain is not None:  # nearly all of them, and shlex takes its time
            values[found[1]] = plain[1] if plain[1] is not None else plain[0]
            continue
        try:
            words = shlex.split(found[2])
        except ValueError:  # an unclosed quote
            words = [found[2]]
        values[found[1]] = " ".join(words)
    return values


def _no_answer(sections: Sections, service: ServiceState) -> Unknown:
    """Return why nothing was asked: the service does not run, or the part never came back."""
    if service.active_state != "active":
        return ABSENT
    missing = sections.missing("services")
    return missing if missing != ABSENT else Unknown("unreadable", "the service was not asked")


def _answers(sections: Sections) -> dict[str, Answer | Unknown]:
    ready = {section.first: section for section in sections.all("answer.ready")}
    models = {section.first: section for section in sections.all("answer.models")}
    return {
        name: Answer(_ready(section), _model_names(models.get(name)))
        for name, section in ready.items()
        if name is not None
    }


def _ready(section: Section) -> int | Unknown:
    if section.rc != 0:
        return _no_connection(section)
    return fields.number("Answer.ready", section.out[1] if len(section.out) > 1 else None)


def _no_connection(section: Section) -> Unknown:
    if section.rc in (7, 28):  # curl: could not connect, took longer than its limit
        return Unknown("unreadable", "no connection" if section.rc == 7 else "no answer in time")
    said = "\n".join(section.err).strip()
    return (
        section.failure
        if section.rc == 127 and section.failure
        else Unknown(
            "unreadable", said.splitlines()[-1][:200] if said else f"exit code {section.rc}"
        )
    )


def _model_names(section: Section | None) -> tuple[str, ...] | Unknown:
    if section is None:
        return Unknown("unreadable", "did not return in time")
    if section.rc != 0:
        return _no_connection(section)
    status = section.out[1].strip() if len(section.out) > 1 else ""
    if status != "200":
        return Unknown("unreadable", f"HTTP status {status[:20] or 'unknown'}")
    try:
        document = json.loads("\n".join(section.out[2:]))
        names = tuple(model["id"] for model in document["data"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Unknown("malformed", "\n".join(section.out[2:])[:200])
    if not all(isinstance(name, str) for name in names):
        return Unknown("malformed", "a model's id is no text")
    return names
