"""From the lines of a survey to its records: pure, also for recorded surveys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from facts import fields
from facts.parsers.docker import OURS, Container, parse_containers, parse_docker
from facts.parsers.door import parse_door
from facts.parsers.environments import environments_unread, parse_accounts, parse_environments
from facts.parsers.files import parse_files, parse_spaces
from facts.parsers.host import parse_host
from facts.parsers.models import parse_models
from facts.parsers.network import parse_listeners
from facts.parsers.nvidia import parse_nvidia
from facts.parsers.systemd import parse_services
from facts.parsers.toolchain import parse_toolchain
from facts.parsers.weights import parse_weights
from facts.records import ServiceState, Survey
from facts.sections import Sections, SurveyError, split

__all__ = ["DEFECT", "SurveyError", "parse_survey", "read_recorded"]

DEFECT = "The survey has output that the toolkit's parsers do not expect"


def parse_survey(lines: Iterable[str], node: str) -> Survey:
    """Return the survey that ``lines`` hold, under the node's inventory name ``node``.

    Takes the program's standard output, line by line, without line ends. Lines before the
    first line of the survey are skipped: a login banner, or ``# `` comments of a recorded one.
    Raises SurveyError, and nothing else, where it is no survey, is cut, or is of another schema.
    """
    sections = split(lines)
    failed = sections.get("failed")
    if failed is not None:
        raise SurveyError(f"The survey could not run on the node: {failed.message}.")
    try:
        return _survey(sections, node)
    except Exception as error:
        # No output is known that does this. But pyinfra ends the run for every node on any error
        # of a fact except its own, and a defect here must not cost more than one node.
        raise SurveyError(
            f"{DEFECT}: {type(error).__name__}: {error}. "
            "Keep the raw survey (survey --record) and report it."
        ) from error


def _survey(sections: Sections, node: str) -> Survey:
    containers = parse_containers(sections)
    files = parse_files(sections)
    services = parse_services(sections, files, sections.all("deployment"))
    return Survey(
        node=node,
        version=sections.version,
        seconds=sections.seconds,
        unfinished=tuple(dict.fromkeys((*sections.unfinished, *sections.timed_out()))),
        host=parse_host(sections),
        systemd_version=fields.number("Survey.systemd_version", _systemd_version(sections)),
        systemd_state=fields.text("Survey.systemd_state", _systemd_state(sections)),
        nvidia=parse_nvidia(sections),
        docker=parse_docker(sections, containers),
        spaces=parse_spaces(sections),
        listeners=parse_listeners(sections),
        services={name: _with_container(service, containers) for name, service in services.items()},
        files=files,
        weights=parse_weights(sections),
        toolchain=parse_toolchain(sections),
        models=parse_models(sections),
        environments=parse_environments(sections),
        environments_unread=environments_unread(sections),
        accounts=parse_accounts(sections),
        door=parse_door(sections),
    )


def _systemd_manager(sections: Sections, key: str) -> str | None:
    """Return a property that systemd showed of itself; None where it showed none."""
    section = sections.get("systemd.manager")
    lines = section.out if section is not None and section.rc == 0 else ()
    return next((line.strip() for line in lines if line.startswith(f"{key}=")), None)


def _systemd_version(sections: Sections) -> fields.Raw:
    shown = _systemd_manager(sections, "Version")
    return shown or sections.value("systemd.version", "systemd")


def _systemd_state(sections: Sections) -> fields.Raw:
    """``systemctl is-system-running`` ends with 1 for every state but ``running``."""
    shown = _systemd_manager(sections, "SystemState")
    if shown is not None:
        return shown.partition("=")[2]
    section = sections.get("systemd.state")
    if section is None:
        return sections.missing("systemd")
    return section.value() if section.first is None or section.rc > 1 else section.first


def _with_container(service: ServiceState, containers: Sequence[Container]) -> ServiceState:
    for container in containers:
        if container.name == f"{OURS}{service.name}" and container.state == "running":
            return replace(
                service,
                container_image=container.image_id,
                container_started=container.started,
                container_deployment=container.deployment,
                container_began=container.began,
            )
    return service


def read_recorded(path: Path) -> Survey:
    """Return the survey recorded in the file ``path``; the node is named by the file's stem.

    Raises SurveyError as ``parse_survey`` does, also where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SurveyError(f"The recorded survey {path} cannot be read: {error}.") from error
    return parse_survey(text.split("\n"), path.stem)
